"""A whole run: play a federation's rounds, write everything down, and pick up again where it stopped."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any, Protocol

import torch

from kithkin import own
from kithkin.compute import Graphs, Ticking, one_thread
from kithkin.config import Alpha, RunConfig, from_json, some
from kithkin.disk import disk_errors, write_json, write_text
from kithkin.errors import KithkinError
from kithkin.federation import (
    Ledger,
    LocalCourier,
    Marks,
    World,
    cohort_size,
    open_world,
    paper_costs,
    play,
)
from kithkin.methods import check, entry_of, settings_from
from kithkin.methods.fedavg import rounds_before
from kithkin.methods.um_plus import pool_in, um_in
from kithkin.record import checkpoint
from kithkin.record.assembling import Federation, Troupe, assemble, in_full, must_be_same, sources
from kithkin.record.folder import Folder
from kithkin.record.memory import forget_peaks, peak_memory


class Display(Protocol):
    """What shows a run to a person. `already` rounds are done; -1: the warm-up is still to come."""

    def start(self, config: RunConfig, already: int, machine: str) -> None: ...

    def tick(self, done: int, jobs: int) -> None:
        """So many of the jobs that wait at this moment are done."""
        ...

    def round(self, line: dict[str, Any], moved: int) -> None: ...

    def say(self, text: str) -> None: ...

    def stop(self) -> None: ...


class StopRunError(Exception):
    """Raised by a display: the run is saved as far as it has come, and ends."""


class Quiet:
    """Shows nothing."""

    def start(self, config: RunConfig, already: int, machine: str) -> None: ...

    def tick(self, done: int, jobs: int) -> None: ...

    def round(self, line: dict[str, Any], moved: int) -> None: ...

    def say(self, text: str) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """What a run gave; the same as its folder holds."""

    folder: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]
    clients: list[dict[str, Any]]

    def __repr__(self) -> str:
        s = self.summary
        return f"Result({s['method']} on {s['data']}: test {s['test_at_best_val']:.3f} at best validation, in {self.folder})"


Look = Callable[[Federation, World], None]


def home_of(config: RunConfig) -> Path:
    """Where a run goes that was given no folder."""
    config = in_full(config)
    return Path("runs") / folder_name(config.method, f"-{Path(config.data).stem}", config.alpha, config.seed)


def folder_name(method: str, data: str, alpha: Alpha | None, seed: int) -> str:
    dealt = f"-a{alpha:g}" if isinstance(alpha, float | int) else ""
    return f"{own.short(method).replace(':', '.')}{data}{dealt}-s{seed}"


def run(
    config: RunConfig,
    settings: Any = None,
    out: Path | None = None,
    display: Display | None = None,
    look: Look | None = None,
) -> Result:
    """Do a run in a new folder; `look` sees the trained federation before it is gone."""
    settings = entry_of(config.method).settings if settings is None else settings
    federation = assemble(config, settings)
    config = federation.config
    folder = Folder(out or home_of(config))
    folder.create()
    with one_thread(federation.device), folder.claimed():
        with disk_errors(folder.manifest, "Give another --out."):
            write_json(folder.manifest, federation.manifest())
        world = open_world(federation.method, federation.clients, federation.w0)
        return go_on(federation, folder, world, display or Quiet(), look and partial(look, federation))


def resume(
    path: Path, display: Display | None = None, look: Look | None = None, where: Mapping[str, str | None] | None = None
) -> Result:
    """Go on with a run from its last good checkpoint; a finished one is only read.

    `where` may name another device, compute or pool than it began with.
    """
    display = display or Quiet()
    folder = Folder(path)
    manifest = folder.read_manifest()
    if "newcomer" in manifest:
        raise KithkinError(f"{path} is a newcomer's, who has joined already.", "Use it with `kithkin predict`.")
    if "site" in manifest:
        raise KithkinError(f"{path} is a site's.", "It goes on with `kithkin site join`.")
    if folder.summary.exists():
        display.say(f"{path} is finished.")
        return read_result(folder)
    if "terms" in manifest:
        raise KithkinError(f"The clients of {path} are elsewhere.", "Go on with it by `kithkin federation start`.")
    try:
        elsewhere = {name: value for name, value in (where or {}).items() if value is not None}
        config = from_json({**manifest["config"], **elsewhere}).checked()
        settings = settings_from(config.method, manifest["settings"])
        check(settings, some(config.clients))
        split_hash = manifest["split_hash"]
    except (KeyError, TypeError, AttributeError, AssertionError) as e:
        raise KithkinError(f"{folder.manifest} is not of this version of kithkin ({e}).", "Start the run anew.") from None
    federation = assemble(config, settings)
    federation.split.must_be(split_hash)
    must_be_same(manifest, federation.names, federation.picture, federation.fingerprint)
    for what, sha256 in sources(config).items():
        if manifest.get("sources", {}).get(what) != sha256:
            display.say(f"The file of the {what} ({getattr(config, what)}) was changed since the run began.")
    if federation.w0.numel() != manifest.get("model_numbers", federation.w0.numel()):
        raise KithkinError(
            f"The model has {federation.w0.numel():,} numbers; when the run began it had {manifest['model_numbers']:,}.",
            f"Bring back the {config.model} of then.",
        )
    with one_thread(federation.device), folder.claimed():
        if folder.summary.exists():  # another process has done it meanwhile
            return read_result(folder)
        recorded, classes = rounds_on_record(folder, config), checkpoint.classes_of(config.method)
        world = checkpoint.load(folder.checkpoints, federation.place, display.say, recorded, classes)
        if world is None:
            display.say("No good checkpoint: starting from the beginning.")
            world = open_world(federation.method, federation.clients, federation.w0)
        return go_on(federation, folder, world, display, look and partial(look, federation))


def rounds_on_record(folder: Folder, config: RunConfig) -> int:
    """How many rounds, from the first on, have all their lines."""
    told = {line.get("round") for line in folder.read_lines(folder.metrics)}
    marked = {line.get("round") for line in folder.read_lines(folder.marks)}
    t = 0
    while t + 1 in told and (t + 1 in marked or not is_evaluated(t + 1, config)):
        t += 1
    return t


def is_evaluated(t: int, config: RunConfig) -> bool:
    """Whether all personal models are examined after this round."""
    return t % config.eval_every == 0 or t == config.rounds


def go_on(
    troupe: Troupe, folder: Folder, world: World, display: Display, look: Callable[[World], None] | None = None
) -> Result:
    """Play rounds until the last, recording each."""
    config, method, courier = troupe.config, troupe.method, troupe.courier
    rounds = some(config.rounds)
    folder.tidy()
    metrics = folder.cut(folder.metrics, world.round)
    marks = [Marks(line["val"], line["test"]) for line in folder.cut(folder.marks, world.round)]
    for path in (folder.audit, folder.lists):
        folder.cut(path, world.round)
    told = sum((Counter(m["bytes_by_cause"]) for m in metrics), Counter[str]())  # bytes that stand in a line already
    pace = checkpoint.Pace(config.checkpoint_every, world.round)
    display.start(config, world.round, "{compute} on {device}, processes: {processes}".format(**troupe.machine()))
    compute = courier.compute if isinstance(courier, LocalCourier) else None
    if isinstance(compute, Graphs):
        compute.say = display.say
    if isinstance(compute, Ticking):
        compute.tick = display.tick
    forget_peaks()
    began = time.perf_counter()
    try:
        while world.round < rounds:
            t = world.round + 1
            before = troupe.ready(world)
            after, labels = play(method, courier, before, troupe.trained(t, before))
            if own.is_own(config.method):  # now, not when a run of hours is to be resumed
                checkpoint.check(after, checkpoint.classes_of(config.method))
            if t == 0:
                world = after
                if pace.is_time(world):
                    pace.save(folder, world)
                continue
            line: dict[str, Any] = {"round": t, "val_mean": None, "test_mean": None, "test_var": None}
            if is_evaluated(t, config):
                marks.append(courier.examine(method, after.server, after.states, t))
                after = replace(after, ledger=after.ledger.add(courier.bill()))
                line |= in_figures(marks[-1])
                folder.append(folder.marks, {"round": t, **asdict(marks[-1])})
                folder.append(folder.lists, {"round": t, "helpers": [compact(h) for h in helpers_of(after)]})
            audited = troupe.audited(labels)
            folder.append(folder.audit, {"round": t, **audited})
            asked, taken, wrong = (audited[name] for name in ("asked", "taken", "wrong"))
            line["pseudo_error"] = wrong / taken if taken else None
            line["pseudo_coverage"] = taken / asked if asked else None
            moved = Ledger(dict(Counter(after.ledger.moved) - told))
            line |= {"down_bytes": moved.down, "up_bytes": moved.up, "bytes_by_cause": moved.moved}
            line["seconds"] = round(time.perf_counter() - began, 4)
            began = time.perf_counter()
            folder.append(folder.metrics, line)
            metrics.append(line)
            told.update(moved.moved)
            world = after  # only now: a world that is saved has all its lines
            display.round(line, world.ledger.up + world.ledger.down)
            if t < rounds and pace.is_time(world):
                pace.save(folder, world)
    except (KeyboardInterrupt, StopRunError) as e:
        if world.round > pace.saved:
            pace.save(folder, world)
        if isinstance(e, KeyboardInterrupt):
            where = f"after round {world.round}" if world.round >= 0 else "in the warm-up, which begins anew"
            display.say(f"Stopped {where}. Go on with `kithkin resume {folder.path}`.")
        raise
    except Exception as e:
        if world.round > pace.saved:
            with suppress(Exception):  # what broke the run is told, not what that did to the disk or the device
                pace.save(folder, world)
        if not isinstance(e, torch.OutOfMemoryError):
            raise
        remedy = "Begin anew with a smaller --width or --batch-size, or fewer --clients."
        if config.pool == "device":
            remedy = f"Go on with `kithkin resume {folder.path} --pool host`. {remedy[:-1]}, if that is not enough."
        raise KithkinError(f"The GPU's memory is full ({str(e).partition('. ')[0]}).", remedy) from None
    finally:
        display.stop()
        if isinstance(compute, Ticking):
            compute.tick = lambda done, jobs: None
    try:
        if look:
            look(world)
        return finish(troupe, folder, world, metrics, marks)
    except BaseException:
        if world.round > pace.saved:
            pace.save(folder, world)
        raise


def in_figures(marks: Marks) -> dict[str, float | None]:
    """Unweighted means over the clients, and the variance of test accuracy: the paper's fairness."""
    val, test = ([v for v in part if v is not None] for part in (marks.val, marks.test))
    return {
        "val_mean": fmean(val) if val else None,
        "test_mean": fmean(test) if test else None,
        "test_var": pvariance(test) if test else None,
    }


def finish(troupe: Troupe, folder: Folder, world: World, metrics: list[dict[str, Any]], marks: list[Marks]) -> Result:
    """Write clients, models and, last of all, the summary: a folder with a summary is a finished run."""
    config = troupe.config
    evaluated = [m for m in metrics if m["test_mean"] is not None]
    judged = [m for m in evaluated if m["round"] > rounds_before(troupe.method)]
    best = max(judged, key=lambda m: (m["val_mean"] is not None, m["val_mean"] or 0.0))
    best = evaluated[-1] if best["val_mean"] is None else best  # nobody has a picture to validate with
    best_marks = marks[evaluated.index(best)]
    helpers = helpers_of(world)
    clients = [
        {
            "client": k,
            **sizes,
            "val_accuracy": marks[-1].val[k],
            "test_accuracy": marks[-1].test[k],
            "test_at_best_val": best_marks.test[k],
            "helpers": helpers[k],
        }
        for k, sizes in enumerate(troupe.sizes())
    ]
    text = "".join(json.dumps(line) + "\n" for line in clients)
    um, K = um_in(troupe.method), len(clients)  # the formulas know of no common model
    costs = {}
    if um and um.M > 1:
        n = some(config.rounds)
        tau = cohort_size(K, some(config.sample_rate)) / K
        costs = paper_costs(K, um.M, um.R, min(um.F, n), um.nu, tau, n, troupe.w0.numel())
    summary = {
        "method": own.short(config.method),
        "data": config.data,
        "alpha": config.alpha,
        "seed": config.seed,
        "rounds": config.rounds,
        "test_at_best_val": best["test_mean"],
        "test_var_at_best_val": best["test_var"],
        "best_val": best["val_mean"],
        "best_val_round": best["round"],
        "best_test": max(m["test_mean"] for m in judged),
        "final_test_mean": evaluated[-1]["test_mean"],
        "final_test_var": evaluated[-1]["test_var"],
        **last_labels(metrics),
        "down_bytes": world.ledger.down,
        "up_bytes": world.ledger.up,
        "bytes_by_cause": world.ledger.moved,
        "cost_formulas": costs,
        "seconds": round(sum(m["seconds"] for m in metrics), 3),
        "memory": peak_memory(),
        "split_hash": troupe.digest(),
    }
    with disk_errors(folder.path, f"Free some room, then `kithkin resume {folder.path}`."):
        if config.save_models:
            troupe.save_models(folder, world)
        write_text(folder.clients, text)
        write_json(folder.summary, summary)
    return Result(folder.path, summary, metrics, clients)


def last_labels(metrics: list[dict[str, Any]]) -> dict[str, float | None]:
    """Pseudo labels of the last round that asked for any: how many of those taken were wrong, and how many were taken."""
    asked = [m for m in metrics if m["pseudo_coverage"] is not None]
    return {f"final_{name}": asked[-1][name] if asked else None for name in ("pseudo_error", "pseudo_coverage")}


def compact(helpers: list[dict[str, Any]]) -> list[list[float]]:
    """A client's helpers as [client, version, relation]."""
    return [[h["client"], h["version"], round(h["relation"], 4)] for h in helpers]


def helpers_of(world: World) -> list[list[dict[str, Any]]]:
    """Every client's helpers as the server knows them, best first; none where a method has none."""
    pool = pool_in(world.server)
    if not pool:
        return [[] for _ in world.states]
    return [[asdict(h) for h in sorted(held, key=lambda h: -h.relation)] for held in pool.holds]


def read_result(folder: Folder) -> Result:
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
        if not isinstance(summary, dict) or "test_at_best_val" not in summary:
            raise ValueError("it is no run's summary")
    except (OSError, ValueError) as e:
        raise KithkinError(
            f"{folder.summary} cannot be read ({e}).", f"Delete it, then `kithkin resume {folder.path}` writes it again."
        ) from None
    return Result(folder.path, summary, folder.read_lines(folder.metrics), folder.read_lines(folder.clients))
