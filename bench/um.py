"""Claims about UM-pFSSL at the paper's settings (CIFAR-10's shape, ResNet-9 width 64, M=5, R=2, nu=10, T=10, cohort of 10):
search costs about as much as the training of its round; after the search phase the mean round, refreshes included, costs the
same within 10% from K=100 to K=400; a whole run of 200 rounds with evaluation every 5 takes 75 s or less on one H200.

Pictures are random, which changes no shape: 600 a client, which a Dirichlet split at alpha 0.5 deals out.

    python bench/um.py [--clients 100 400] [--rounds 60] [--json FILE]
    python bench/um.py --clients 1000 --pool host --pictures 60 --alpha 5 --search 4 --rounds 12     more than fits on the card
    kithkin run --method um --data cifar-10 --preset paper --eval-every 5      the whole run, on the real pictures
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kithkin.config import RunConfig
from kithkin.data import Dataset
from kithkin.federation import cohort, open_world, play
from kithkin.methods import METHODS
from kithkin.record.assembling import assemble
from kithkin.record.memory import peak_memory


def pictures(clients: int, side: int = 32, channels: int = 3, each: int = 600) -> Dataset:
    """Random ones, of a known number for each client."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (clients * each, channels, side, side), dtype=np.uint8)
    labels = draw.integers(0, 10, len(images))
    return Dataset("random", images, labels, tuple("0123456789"), True)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_rounds(config: RunConfig, rounds: int, dataset: Dataset, **settings: Any) -> dict[str, Any]:
    """Seconds of the warm-up, and medians over search, refresh and plain rounds; the phases follow one another in `rounds`.

    The mean after the search phase is that of a period of refreshing, by the medians: first rounds of a kind capture graphs.
    """
    um = replace(METHODS["um"].settings, **settings)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    federation = assemble(replace(config, data="random", rounds=rounds, preset="paper"), um, dataset)
    K, rate = federation.config.clients or 0, federation.config.sample_rate or 0.0
    world = open_world(federation.method, federation.clients, federation.w0)
    seconds: list[float] = []
    for t in range(rounds + 1):
        began = time.perf_counter()
        world, _ = play(federation.method, federation.courier, world, cohort(config.seed, t, K, rate) if t else set(range(K)))
        wait()
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    federation.courier.examine(federation.method, world.server, world.states, rounds)
    examined = time.perf_counter() - began
    kinds: dict[str, list[float]] = {"search": [], "refresh": [], "plain": []}
    for t in range(3, rounds + 1):  # the first rounds capture graphs
        kind = "refresh" if t % um.refresh_every == 0 else "search" if t < um.search_rounds else "plain"
        if kind != "refresh" or t >= um.search_rounds:
            kinds[kind].append(seconds[t])
    median = {kind: statistics.median(times) for kind, times in kinds.items()}
    return {
        "clients": K,
        "warm-up": seconds[0],
        **median,
        "mean after search": median["plain"] + (median["refresh"] - median["plain"]) / um.refresh_every,
        "evaluation": examined,
        "GPU GB": peak_memory()["gpu_bytes"] / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--search", type=int, default=30)
    parser.add_argument("--pool", choices=["device", "host"], default="device")
    parser.add_argument("--pictures", type=int, default=600)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    search = args.search if cuda else 4
    rows: list[dict[str, Any]] = []
    for K in args.clients if cuda else [8, 16]:
        config = RunConfig(
            method="um", clients=K, sample_rate=(10 if cuda else 2) / K, width=64 if cuda else 4, alpha=args.alpha
        )
        config = replace(config, pool=args.pool)
        dataset = pictures(K, each=args.pictures) if cuda else pictures(K, 8, 1, 40)
        rounds, few = (args.rounds, {}) if cuda else (12, {"refresh_every": 4, "warmup_epochs": 1})
        rows.append(time_rounds(config, rounds, dataset, search_rounds=search, **few))
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    first, last = rows[0], rows[-1]
    ratio = (first["search"] - first["plain"]) / first["plain"]
    print(f"search costs {ratio:.2f} of the training of its round")
    print(f"a round after the search phase: {last['mean after search'] / first['mean after search']:.2f} times as long with "
          f"{last['clients']} clients as with {first['clients']}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
