"""What each table and figure of the paper needs (cells) and how it is drawn. `RECIPES[name]` is all there is to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kithkin.errors import unknown
from kithkin.paper import figures, tables
from kithkin.paper.cells import Cell, Grid, gather, in_words
from kithkin.paper.drawing import Block, Picture, entitle, lacks
from kithkin.paper.plan import ALL, SHORT, TUNED, Plan


@dataclass(frozen=True)
class Recipe:
    title: str
    place: str  # in the paper
    cells: Callable[[Plan], Iterator[Cell]]
    draw: Callable[[Grid, Plan], list[Block]]
    words: str  # what differs from the paper, and why
    setting: str = ""  # where scale and learning rate are its own
    letter: str = "α"  # what the columns are, where they are numbers
    narrow: Callable[[Grid, Plan], Grid] = lambda grid, plan: grid  # leaves out what the runs that are there make needless

    def plan(self, plan: Plan) -> list[Cell]:
        """All cells, the important ones first: every place with one seed before any with two."""
        return sorted(self.cells(plan), key=lambda cell: cell.config.seed)

    def gather(self, cells: Iterable[Cell], plan: Plan, results: Path) -> Grid:
        """What there is of these cells, and which of the others are still wanted."""
        return self.narrow(gather(cells, results), plan)


WIDER = (
    "The paper gives neither the width of its ResNet-9 nor its augmentations for FixMatch; ours has 64 channels in the first "
    "layer, and FixMatch's own RandAugment and cutout."
)
FIRST = "At the paper's learning rate, in first runs of one seed, FedAvg and FixAvg came out above the paper, and `um` below."
SLOW = "At the paper's learning rate `um` still climbs when the rounds end, so a longer run or a larger rate lifts it."

RECIPES: dict[str, Recipe] = {
    **{
        data: Recipe(
            f"Accuracy on {title} over α",
            f"Table {number}",
            partial(tables.accuracy_cells, data),
            partial(tables.accuracy_draw, data),
            words,
        )
        for data, title, number, words in (
            ("fashion-mnist", "Fashion-MNIST", "I", f"{WIDER} {FIRST} {SLOW}"),
            ("cifar-10", "CIFAR-10", "II", f"{WIDER} Pictures are flipped as well. {SLOW}"),
            (
                "pathmnist",
                "PathMNIST",
                "VI",
                f"{WIDER} 20 clients that all train in every round; rows with all labels are ours.",
            ),
            ("organamnist", "OrganAMNIST", "VII", f"{WIDER} No flip here: left and right organs are classes of their own."),
        )
    },
    "components": Recipe(
        "The terms of the relation: accuracy (TA), entropy (EN), both",
        "Table III",
        tables.component_cells,
        tables.component_draw,
        "Entropy is averaged over pictures, so that (14) lies in [0, 1]; with the paper's sum (12) it would not, and weigh "
        f"otherwise against accuracy. {SLOW}",
    ),
    "refresh-period": Recipe(
        "How often helpers are refreshed (ν)",
        "Table IV",
        partial(tables.sweep_cells, "refresh_every", (1, 5, 10, 15, 20)),
        partial(tables.sweep_draw, "refresh-period", "ν", 1),
        "The paper's costs are those of its upper bound (28); ours are bytes that moved. A helper that did not train since is "
        "not sent again, and a tenth of the clients trains in a round: frequent refreshing costs less than by (28).",
        letter="ν",
    ),
    "sample-rate": Recipe(
        "How many clients train in a round (τ)",
        "Table V",
        partial(tables.sweep_cells, "sample_rate", (0.05, 0.1, 0.2, 0.5, 1)),
        partial(tables.sweep_draw, "sample-rate", "τ", 1),
        "The paper's costs fit (28) only if its last term is τK²\\|w\\|n, as in (27), instead of τK\\|w\\|n: 160 + 20000 τ "
        "gives 5.7, 10.7, 20.6, 50.4 and 100%; by (28) as printed it is 47, 50, 56, 72 and 100%. Ours are bytes that moved.",
        letter="τ",
    ),
    "curves": Recipe(
        "Validation accuracy over rounds",
        "Figs. 4, 5",
        partial(figures.all_cells, ALL),
        figures.curves_draw,
        f"Drawn from the cells of Tables I and II. {WIDER} The paper prints no numbers for its curves.",
    ),
    "fairness": Recipe(
        "Variance of test accuracy over clients",
        "Fig. 6",
        partial(figures.all_cells, ALL),
        figures.fairness_draw,
        "From the cells of Tables I and II, at the last round. At small α a client may have a handful of test pictures, of few "
        "classes, which alone makes variance.",
    ),
    "search-rounds": Recipe(
        "How long clients search for helpers (F)",
        "Fig. 7",
        figures.search_cells,
        figures.search_draw,
        "Costs are bytes that moved, not (28); the largest F is the length of the run.",
        letter="F",
    ),
    "label-error": Recipe(
        "Wrong pseudo labels over rounds",
        "Fig. 8",
        partial(tables.component_cells, alphas=(0.5,)),
        figures.label_error_draw,
        "From the cells of Table III. Labels are soft here; one is wrong where its most likely class is.",
    ),
    "features": Recipe(
        "Latent features (t-SNE)",
        "Fig. 9",
        partial(tables.component_cells, alphas=(5.0,), sets=("fashion-mnist",), looks=("features",)),
        figures.features_draw,
        "The paper shows 'the optimal model in each case', not saying by what; ours is best by its own validation pictures.",
    ),
    "list-length": Recipe(
        "How many helpers (M)",
        "Fig. 10",
        figures.length_cells,
        figures.length_draw,
        "The paper names the range, 3 to 15, and prints no numbers. A list that search leaves short is filled at random.",
        letter="M",
    ),
    "confusion": Recipe(
        "Confusion matrices of um and mix on the medical sets",
        "Fig. 11",
        figures.confusion_cells,
        figures.confusion_draw,
        f"{WIDER} Mix averages the outputs of FixAvg, FixProx and FixBN, each trained by itself.",
    ),
    "costs": Recipe(
        "Communication: the paper's formulas and the bytes that moved",
        "(27) to (29)",
        tables.cost_cells,
        tables.cost_draw,
        "(28) counts neither warm-up nor filling, and is else an upper bound: a helper that did not change is not sent. The "
        "paper's 'more than 90% of the communication cost is saved' holds by its formulas for 100 clients.",
    ),
    "relation": Recipe(
        "Does the relation choose the right helpers?",
        "(13), not in the paper",
        figures.relation_cells,
        figures.relation_draw,
        "The paper argues for (13) by its bounds (20) and (21) and does not measure it. *truth*: helpers chosen by their test "
        "accuracy, which nobody can know; *anyone*: all others alike.",
    ),
    "parts": Recipe(
        "What each part of UM+ gives",
        "not in the paper",
        tables.part_cells,
        tables.part_draw,
        "One part is changed at a time. How the method came about, and what else was tried: docs/um-plus.md.",
    ),
    "tuning": Recipe(
        "The learning rate of every method",
        "not in the paper",
        tables.tuning_cells,
        tables.tuning_draw,
        "Every method has the same four rates to choose from; `--lr tuned` gives it the best, by validation pictures, once "
        "its neighbours are known to be worse; until then the data set's usual one. Beyond the grid's edge a better one may "
        "lie. pFedMe chooses that of its inner steps. Tables and figures have other seeds than this grid.",
        f"{SHORT['*']} rounds, a tenth of the clients in each",
        letter="learning rate",
        narrow=lambda grid, plan: tables.still_contended(grid, tables.rates_of(plan)),
    ),
}


def recipe_of(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown("table or figure", name, RECIPES)
    return RECIPES[name]


def facts(grid: Grid, plan: Plan, setting: str = "") -> str:
    """What was run, with what."""
    machines = sorted({r["machine"]["device"] for r in grid.records})
    versions = sorted({r["kithkin"] for r in grid.records})
    by = f", by kithkin {', '.join(versions)} on {', '.join(machines)}" if grid.found else ""
    label = plan.label if plan.reduced else setting or plan.label + chosen_beside_rates(grid, plan)
    mixed = len({len(records) for records in grid.found.values()}) > 1
    splits = " A seed deals the pictures anew: places with another n are means over other splits." if mixed else ""
    return f"Setting: {label}. {grid.filled} of {len(grid.wanted)} cells, {len(grid.records)} runs{by}.{splits}"


def chosen_beside_rates(grid: Grid, plan: Plan) -> str:
    """Which flags `--lr tuned` gives methods of this table beside their rate."""
    runs = {(cell.config.data, cell.config.method) for cell in grid.cells}
    texts: list[str] = []
    for data, method in sorted(runs) if plan.rate == "tuned" else ():
        flags = {k: v for k, v in TUNED.get(data, {}).get(method, {}).items() if k != "lr"}
        texts += [f"{method} on {data} with {', '.join(in_words(flags))}"] if flags else []
    return f" ({'; '.join(texts)})" if texts else ""


def page(name: str, grid: Grid, plan: Plan, level: int = 1) -> list[Block]:
    """One table or figure with all that is said of it; what it lacks is said once, below each figure or with the setting."""
    recipe = RECIPES[name]
    apart = "".join(f", {word}" for word in plan.words)
    head = f"{'#' * level} {recipe.title} ({recipe.place}){apart}" + f' <a id="{name}{plan.stem}"></a>' * (level > 1)
    blocks = recipe.draw(grid, plan)
    pictured = any(isinstance(block, Picture) for block in blocks)
    setting = f"{facts(grid, plan, recipe.setting)} {'' if pictured else lacks(grid, recipe.letter)}".strip()
    for i, block in enumerate(blocks):
        if isinstance(block, Picture):
            entitle(block.figure, block.figure.get_suptitle() + apart)
            caption = f"{block.caption} {lacks(block.grid or grid, recipe.letter)}".strip()
            blocks[i] = replace(block, name=f"{block.name}{plan.stem}", caption=caption)
    return [head, setting, *blocks, *([] if plan.reduced else [recipe.words])]  # which are about the paper's setting
