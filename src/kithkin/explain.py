"""What a method shares on a network: every tensor as shared, local or buffer, and what travels each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table

from kithkin.config import RunConfig, some
from kithkin.data import load, resolved
from kithkin.data.official import SMALL, SOURCES, source_of
from kithkin.errors import KithkinError
from kithkin.federation import cohort_size, paper_costs
from kithkin.federation.ledger import NUMBER
from kithkin.methods import Method, check, entry_of, method_for, sees_all_labels
from kithkin.methods.fedavg import FedAvg
from kithkin.methods.mix import Mix
from kithkin.methods.um import Um
from kithkin.methods.um_plus import UmPlus
from kithkin.nets import Layout, anatomy_of, builder


@dataclass(frozen=True)
class Line:
    """One tensor of the network."""

    name: str
    shape: tuple[int, ...]
    numbers: int
    part: str  # head, norm or body
    role: str  # shared, local; buffers say so


def lines(method: Method, layout: Layout) -> list[Line]:
    """Every tensor with its role. Of a mix, the part that shares least."""
    shared = shared_numbers(method, layout)
    norm, head = layout.norm, layout.mask(lambda slot: slot.layer == 1)
    found: list[Line] = []
    for slot in layout.slots:
        role = "shared" if bool(shared[slot.start]) else "local"
        part = "norm" if bool(norm[slot.start]) else "head" if bool(head[slot.start]) else "body"
        role += "" if slot.trained else " buffer"
        found.append(Line(slot.name, tuple(slot.shape), slot.stop - slot.start, part, role))
    return found


def shared_numbers(method: Method, layout: Layout) -> torch.Tensor:
    """Which numbers of the model leave the client (of LG-FedAvg: once its FedAvg rounds are over)."""
    if isinstance(method, FedAvg):
        return method.shared
    if isinstance(method, Mix):
        return torch.stack([m.shared for m in method.methods]).all(0)
    return torch.full((layout.size,), isinstance(method, UmPlus) or (isinstance(method, Um) and method.M > 1))


def traffic(method: Method, config: RunConfig, layout: Layout) -> list[tuple[str, str]]:
    """What a round moves, in words and bytes."""
    K = some(config.clients)
    cohort = cohort_size(K, some(config.sample_rate))
    size = layout.size * NUMBER
    if isinstance(method, UmPlus):
        common = ("each round, common model", f"{cohort} models down: {amount(cohort * size)}")
        if method.um.M > 1:
            return [*traffic(method.um, config, layout), common]
        warm = ("once, warm-up", f"{K} models up: {amount(K * size)}")
        return [warm, ("each round, upload", f"{cohort} models: {amount(cohort * size)}"), common]
    if isinstance(method, Um):
        if method.M == 1:
            return [("each round", "nothing: every client trains alone")]
        n = some(config.rounds)
        costs = paper_costs(K, method.M, method.R, min(method.F, n), method.nu, cohort / K, n, layout.size)
        return [
            ("once, warm-up", f"{K} models up: {amount(K * size)}"),
            (f"rounds before {method.F}, search", f"{method.R} models to each of {K} clients: {amount(K * method.R * size)}"),
            (
                f"every {method.nu} rounds, refresh",
                f"at most {method.M - 1} newer models to each client: {amount(K * (method.M - 1) * size)}",
            ),
            ("each round, upload", f"{cohort} models: {amount(cohort * size)}"),
            ("a client's first training, fill", f"at most {method.M - 1} models"),
            ("whole run by (28), less warm-up and fill", amount(costs["helper_lists_28"])),
            ("whole run, greedy search (27)", amount(costs["greedy_27"])),
        ]
    parts = method.methods if isinstance(method, Mix) else (method,)
    sent = sum(int(part.shared.sum()) for part in parts if isinstance(part, FedAvg)) * NUMBER
    told = [("each round", f"{cohort} clients, {amount(sent)} down and {amount(sent)} up each: {amount(2 * cohort * sent)}")]
    before = max((part.share_all_until for part in parts if isinstance(part, FedAvg)), default=0)
    if before:
        told.insert(0, (f"rounds 1 to {before}", f"the whole model (FedAvg): {amount(2 * cohort * size)}"))
    return told


def amount(size: float) -> str:
    """Bytes as people read them.

    >>> amount(1234567), amount(999600)
    ('1.23 MB', '1 MB')
    """
    for unit in ("B", "kB", "MB"):
        if size < 999.5:  # which three digits do not round to a thousand
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:,.0f} GB"


def explain(config: RunConfig, settings: Any) -> None:
    """Print it for the network that a run with this config would train."""
    config = resolved(config.checked())
    if config.data in (*SOURCES, *SMALL):  # its files need not be here
        data = source_of(config.data)
        (channels, height, width), part = data.shape, 2 if config.data in SMALL else 1
        shape = channels, height // part, width // part
    else:
        data = load(config.data, config.data_folder)
        shape = data.images.shape[1:]
    check(settings, some(config.clients))
    classes = len(data.classes)
    network = anatomy_of(builder(config.model, shape, classes, some(config.width)), shape, classes)
    layout = network.layout
    method = method_for(config, settings, network, data.flip, torch.device("cpu"))
    if not isinstance(method, FedAvg | Mix | Um | UmPlus):
        raise KithkinError(
            f"What {config.method} shares is not known before it runs.", "The summary of a run tells its bytes by cause."
        )
    console = Console()
    console.print(f"[bold]{config.method}[/]: {entry_of(config.method).summary}")
    table = Table(
        Column("tensor", overflow="fold"), Column("shape", overflow="fold"), Column("numbers", justify="right"), "part", "role"
    )
    for line in lines(method, layout):
        style = "" if line.role.startswith("shared") else "yellow"
        table.add_row(line.name, "x".join(map(str, line.shape)), f"{line.numbers:,}", line.part, line.role, style=style)
    console.print(table)
    facts = Table(show_header=False, box=None)
    facts.add_row("labels", "all training labels are given" if sees_all_labels(settings) else "each client's own labelled part")
    facts.add_row("model", f"{layout.size:,} numbers, {amount(layout.size * NUMBER)}; {layout.trained:,} of them are trained")
    for what, how in traffic(method, config, layout):
        facts.add_row(what, how)
    console.print(facts)
