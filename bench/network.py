"""What the network costs: seconds and bytes of a round on loopback, training subtracted, and what a federation moves in a day.

Claim: beside its training a round costs 4 to 6 seconds, nearly all of it Flower's waiting. Two cores of a shared
2.8 GHz Xeon, everything on loopback with TLS and keys, um on digits, one run of 4 rounds each (medians of rounds 2 and 3):

     sites  s a round  slowest site  network  MB down, a site  MB up, a site
         3        4.6           0.4      4.2             0.42           0.42
         8        5.9           0.4      5.4             0.42           0.42

Computed, GB that a run of 200 rounds at the paper's settings moves (6,706,378 numbers a model); one such run a day:

     sites  helper lists (28)  all models (27)  a site, down   at fp16  server, MB/s
        10               48.3             53.7          4.29      2.15          0.56
       100              482.9          5,365.1          4.29      2.15          5.59
      1000            4,828.6        536,510.2          4.29      2.15         55.89

    python bench/network.py            # 3 and 8 sites over TLS with keys: some minutes; the table of a day is computed
    python bench/network.py --sites 3 4 6 8 --rounds 4
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "network")]

from fleet import Fleet  # noqa: E402 - the tests' way to start a federation

from kithkin.federation import paper_costs  # noqa: E402
from kithkin.nets import ResNet9, initial_vector  # noqa: E402


def measure(sites: int, rounds: int, width: int) -> dict[str, float]:
    """A federation of so many sites over TLS; medians over the rounds after the first."""
    with tempfile.TemporaryDirectory() as home:
        fleet = Fleet(Path(home), sites, secure=True, rounds=rounds, deadline=300)
        text = fleet.file.read_text().replace("width = 2", f"width = {width}")
        fleet.file.write_text(text.replace("[run]", f"[run]\neval_every = {rounds}"))
        try:
            for k in range(sites):
                fleet.seat(k, fleet.init_site(k))
            fleet.serve()
            for k in range(sites):
                fleet.join(k)
            fleet.start()
            fleet.wait_end()
        finally:
            fleet.close()
        lines = fleet.lines("metrics.jsonl")[1:-1]  # the first waits for sites, the last has an exam
        slowest = {line["round"]: max(line["seconds"].values()) for line in fleet.lines("sites.jsonl")}
        return {
            "round": statistics.median(line["seconds"] for line in lines),
            "training": statistics.median(slowest[line["round"]] for line in lines),
            "down": statistics.median(line["down_bytes"] for line in lines) / sites / 1e6,
            "up": statistics.median(line["up_bytes"] for line in lines) / sites / 1e6,
        }


def day() -> None:
    """By the ledger's formulas: the paper's settings (M=5, R=2, F=30, nu=10, tau=0.1, n=200), one such run a day."""
    size = initial_vector(lambda: ResNet9(3, 10, 64), 0).numel()
    print(f"\nGB that a run of 200 rounds at the paper's settings moves, {size:,} numbers a model; one such run a day:")
    columns = ("helper lists (28)", "all models (27)", "a site, down", "at fp16", "server, MB/s")
    print(f"{'sites':>6} " + " ".join(f"{c:>{w}}" for c, w in zip(columns, (18, 16, 13, 9, 13), strict=True)))
    for K in (10, 100, 1000):
        costs = paper_costs(K, M=5, R=2, F=30, nu=10, tau=0.1, n=200, size=size)
        lists = costs["helper_lists_28"] / 1e9
        up = 0.1 * K * 200 * size * 4 / 1e9
        a_site = (lists - up) / K
        rate = lists * 1e3 / 86400
        print(f"{K:6} {lists:18,.1f} {costs['greedy_27'] / 1e9:16,.1f} {a_site:13,.2f} {a_site / 2:9,.2f} {rate:13,.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--width", type=int, default=8)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, loopback, TLS and keys, um on digits, ResNet-9 width {args.width}")
    print(f"{'sites':>6} {'s a round':>10} {'slowest site':>13} {'network':>8} {'MB down, a site':>16} {'MB up, a site':>14}")
    for K in args.sites:
        m = measure(K, args.rounds, args.width)
        network = m["round"] - m["training"]
        print(f"{K:6} {m['round']:10.1f} {m['training']:13.1f} {network:8.1f} {m['down']:16.2f} {m['up']:14.2f}", flush=True)
    day()


if __name__ == "__main__":
    main()
