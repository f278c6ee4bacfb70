"""A client that was not there at training joins a finished run: Algorithm 1's visit, with the whole pool as candidates.

It warms up on its own labelled pictures, keeps the M - 1 models of the pool that are related most (13), has them label its
other pictures, trains, and has its own model. Nothing of the run changes, and no picture leaves the newcomer. It also trains
alone, on its labelled pictures, for as many epochs, and keeps that model where it does better on its validation pictures: a
pool may be confident and wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kithkin.compute import Compute, Predict, Ticking, choose, one_thread, together
from kithkin.config import as_json
from kithkin.data import Dataset, Share, deal, whole_name
from kithkin.data import load as load_data
from kithkin.data.own import fits, read_like
from kithkin.data.sources import is_official
from kithkin.data.split import label_some
from kithkin.disk import disk_errors, write_json, write_text
from kithkin.errors import KithkinError
from kithkin.helpers import Helper
from kithkin.methods import METHODS, Client, method_for, settings_from
from kithkin.methods.base import SERVER, Brief, Method, Parcel
from kithkin.methods.um import Pool, Um, UmState, held
from kithkin.methods.um_plus import Commons, PlusState, UmPlus
from kithkin.nets import anatomy_of, initial_vector
from kithkin.own import expanded
from kithkin.record.folder import Folder
from kithkin.record.models import Pooled, write_models
from kithkin.use.loading import LoadedRun

FEW = 5  # labelled pictures with which nothing is held back to test on


@dataclass(frozen=True, eq=False)
class Joined:
    """A newcomer's model, and what it is worth."""

    client: Client
    share: Share
    state: UmState
    helped: Tensor
    alone: Tensor
    shift: list[float] | None  # its log prior, in um-plus
    marks: tuple[float | None, float | None]  # of the helped model, on validation and test pictures
    marks_alone: tuple[float | None, float | None]

    @property
    def harmed(self) -> bool:
        """Whether the helpers did harm, as far as validation pictures tell."""
        helped, alone = self.marks[0], self.marks_alone[0]
        return helped is not None and alone is not None and helped < alone

    @property
    def gain(self) -> float | None:
        """Test accuracy of the helped model above that of training alone."""
        helped, alone = self.marks[1], self.marks_alone[1]
        return None if helped is None or alone is None else helped - alone


def read_newcomer(run: LoadedRun, data: str) -> Dataset:
    """The newcomer's pictures, with the run's classes."""
    path = expanded(data)
    if not is_official(data) and path.exists():
        return read_like(path, run.classes, run.picture)
    dataset = load_data(data, run.config.data_folder)
    fits(data, dataset.images, run.picture)
    if dataset.classes != run.classes:
        raise KithkinError(f"{data} has other classes than the run.", f"Give pictures of: {', '.join(run.classes)}.")
    return dataset


def share_of(labels: np.ndarray, label_ratio: float | None, seed: int) -> Share:
    """Its pictures by role: a fifth of the labelled ones for testing, a tenth for validation; the ratio hides labels."""
    known, unknown = np.flatnonzero(labels >= 0), np.flatnonzero(labels < 0)
    ratio = 1.0 if label_ratio is None else label_ratio
    if len(known) < FEW:
        share = label_some(seed, 0, ratio, np.arange(len(known)), known[:0], known[:0])
    else:
        (share,) = deal(labels[known], 1, 1.0, seed, ratio).shares
    unlabelled = np.concatenate([known[share.unlabelled], unknown])
    return Share(known[share.labelled], unlabelled, known[share.val], known[share.test])


def join(
    run: LoadedRun,
    dataset: Dataset,
    label_ratio: float | None = None,
    rounds: int = 3,
    epochs: int | None = None,
    lr: float | None = None,
    tick: Callable[[int, int], None] | None = None,
) -> Joined:
    """Train a newcomer from the run's pool, and once more alone."""
    if "newcomer" in run.manifest:
        raise KithkinError(f"{run.folder.path} is a newcomer's.", "Name the run that it joined.")
    if "site" in run.manifest:
        problem = f"{run.folder.path} is a site's: its own model alone is kept there."
        raise KithkinError(problem, "Join its federation, with `kithkin site init` and `kithkin site join`.")
    pool, device = [run.models.helper(k) for k in run.models.pooled], run.models.device
    if not pool:
        raise KithkinError(
            f"{run.folder.path} has no pool to choose helpers from: its method is {run.config.method}.",
            "Run um or um-plus, with two clients and --helpers 2 or more.",
        )
    given = {k: v for k, v in (("epochs", epochs), ("lr", lr)) if v is not None}
    config = replace(run.config, **given).checked()
    share = share_of(dataset.labels, label_ratio, config.seed)
    if not len(share.train):
        raise KithkinError("The newcomer has no picture to train on.", "Give it some.")
    images, labels = torch.from_numpy(dataset.images).to(device), torch.from_numpy(dataset.labels).to(device)
    labelled, unlabelled = (torch.from_numpy(rows).to(device) for rows in (share.labelled, share.unlabelled))
    number = 1 + max(run.models.clients)
    client = Client(number, images, labelled, labels[labelled], unlabelled, config.seed)

    network, w0 = anatomy_of(run.build, run.picture, len(run.classes)), initial_vector(run.build, config.seed).to(device)
    settings = settings_from(config.method, run.manifest["settings"])
    method = method_for(config, settings, network, dataset.flip, device)
    lonely = replace(METHODS["local"].settings, warmup_epochs=settings.warmup_epochs)
    local = method_for(replace(config, method="local"), lonely, network, dataset.flip, device)
    assert isinstance(local, Um)
    compute = choose("auto", run.build, device, len(run.classes), "fp32")
    if isinstance(compute, Ticking) and tick:
        compute.tick = tick

    with one_thread(device):
        prior = None
        if isinstance(method, UmPlus):
            recipe = replace(method.um.recipe, epochs=config.epochs * rounds, lr=method.um.recipe.lr * settings.tune_lr)
            state, w = tuned(replace(method, tune=recipe), client, w0, compute, pool)
            prior = method.log_prior(client, None).tolist()
        else:
            assert isinstance(method, Um)
            state = visits(method, client, w0, compute, pool, rounds)
            w = state.helpers.own.w
        alone = visits(local, client, w0, compute, [], rounds).helpers.own.w
        marks, marks_alone = (accuracies(compute, x, client, share, labels) for x in (w, alone))
    return Joined(client, share, state, w, alone, prior, marks, marks_alone)


def visits(method: Um, client: Client, w0: Tensor, compute: Compute, pool: list[Helper], rounds: int) -> UmState:
    """A warm-up and some rounds of training, in the first of which the whole pool is tried."""
    state = visit(method, client, method.greet(client, w0), Brief(0, train=False), compute)
    for t in range(1, rounds + 1):
        state = visit(method, client, state, Brief(t, True, search(pool) if t == 1 else ()), compute)
    return state


def tuned(method: UmPlus, client: Client, w0: Tensor, compute: Compute, pool: list[Helper]) -> tuple[UmState, Tensor]:
    """The common model with the newcomer's prior, as every client of UM+ has it, tuned on what all of them label."""
    common = next(h for h in pool if h.client == SERVER)
    state = visit(method, client, method.greet(client, w0), Brief(0, train=False), compute)
    state = visit(method, client, state, Brief(1, False, search([h for h in pool if h is not common])), compute)
    server = Commons(Pool((), ()), (), common.w, common.evidence, common.w)
    ((w,),) = together([method.personal(server, client, cast(PlusState, state), 1)], compute.work)
    return state, w


def search(pool: list[Helper]) -> tuple[Parcel, ...]:
    return tuple(Parcel("search", h.client, h.version, h.w, h.w.numel(), h.evidence) for h in pool)


def visit(method: Method, client: Client, state: Any, brief: Brief, compute: Compute) -> Any:
    (reply,) = together([method.visit(client, state, brief)], compute.work)
    if reply.loss is not None and not reply.loss.isfinite():
        raise diverged()
    return reply.state


def diverged() -> KithkinError:
    return KithkinError("The newcomer's training diverged.", "Give a smaller --lr.")


def accuracies(compute: Compute, w: Tensor, client: Client, share: Share, labels: Tensor) -> tuple[float | None, float | None]:
    """On validation and test pictures; none where there are none."""
    (p,) = compute.work([Predict(w, client.images, torch.arange(len(labels), device=labels.device))])
    if not p.isfinite().all():
        raise diverged()
    right = (p.argmax(1) == labels).float().cpu().numpy()
    val, test = (float(right[part].mean()) if len(part) else None for part in (share.val, share.test))
    return val, test


def write_newcomer(folder: Folder, run: LoadedRun, data: str, joined: Joined) -> None:
    """A folder that `predict`, `advise` and `export` take; the manifest is written last."""
    k, share = joined.client.number, joined.share
    helpers = {h.client: h for h in joined.state.helpers}
    kept, marks = (joined.alone, joined.marks_alone) if joined.harmed else (joined.helped, joined.marks)
    about = {
        "joined": str(run.folder.path.resolve()),
        "client": k,
        "kept": "alone" if joined.harmed else "helped",
        "test_helped": joined.marks[1],
        "test_alone": joined.marks_alone[1],
        "gain": joined.gain,
    }
    line = {
        "client": k,
        **{role: len(getattr(share, role)) for role in ("labelled", "unlabelled", "val", "test")},
        "label_ratio": share.label_ratio,
        "val_accuracy": marks[0],
        "test_accuracy": marks[1],
        "helpers": [asdict(h) for h in held(joined.state.helpers.best_first())],
    }
    config = replace(run.config, data=whole_name(data), clients=1)
    same = {name: run.manifest[name] for name in ("seed", "settings", "model_numbers", "versions")}
    manifest = {"config": as_json(config), **same, "classes": run.classes, "picture": run.picture, "newcomer": about}
    with disk_errors(folder.path, "Give another --out."):
        write_models(folder.models, {k: [kept]}, Pooled(helpers, {k: joined.shift} if joined.shift else {}))
        write_text(folder.clients, json.dumps(line) + "\n")
        write_json(folder.manifest, manifest)
