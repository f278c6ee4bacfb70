"""Claims: a FedAvg round of the peers' common workload takes less time than with any of the federated libraries in peers.md, a
fraction on a GPU; on a CPU with two cores worker processes play a round of um at least 1.6 times as fast as eager does, with
one thread or with two.

The peers' workload: ResNet-9 width 64 and 32x32x3 pictures (on a CPU width 8 and 28x28), 100 clients, 10 a round, 5 epochs,
batch 64, 420 pictures each. Prints seconds per round (median of the timed rounds) and milliseconds per client step.

On a CPU besides: rounds of um, examinations included, on digits: ResNet-9 width 8, 20 clients, 10 a round, 5 epochs, batch 32,
10 dropout passes. The computes take turns within every round; prints the median seconds of each and the median of the ratios.

    python bench/round.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from kithkin.compute import Compute, Eager, Fit, Lesson, Recipe, Workers, choose, cores
from kithkin.federation import cohort, open_world, play
from kithkin.flags import settle
from kithkin.helpers import average
from kithkin.nets import ResNet9, initial_vector
from kithkin.record.assembling import assemble


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--computes", nargs="+", default=["eager-fp32", "graphs-fp32", "graphs-bf16"], help="on a GPU")
    args = parser.parse_args()
    if torch.cuda.is_available():
        peers_workload(torch.device("cuda"), (3, 32, 32), 64, args.rounds, args.computes)
    else:
        peers_workload(torch.device("cpu"), (1, 28, 28), 8, args.rounds, ["workers-fp32"])
        um(args.rounds)


def um(rounds: int) -> None:
    flags = {"method": "um", "data": "digits", "clients": 20, "sample_rate": 0.5, "width": 8, "batch_size": 32, "epochs": 5}
    federation = assemble(*settle({**flags, "mc_samples": 10, "device": "cpu", "compute": "eager"}))
    method, courier, clients = federation.method, federation.courier, federation.clients
    threads = torch.get_num_threads()

    def build() -> ResNet9:
        return ResNet9(1, 10, 8)

    eager = Eager(build, torch.device("cpu"))
    computes: dict[str, tuple[Compute, int]] = {"workers": (Workers(build, cores()), 1)}
    computes |= {f"eager, threads: {n}": (eager, n) for n in sorted({1, threads})}
    seconds: dict[str, list[float]] = {name: [] for name in computes}
    print(f"{rounds} rounds of um on digits")
    world = open_world(method, clients, federation.w0)
    for t in range(rounds + 2):  # the first is the warm-up, the second meets cold caches
        for name, (courier.compute, n) in computes.items():
            torch.set_num_threads(n)
            began = time.perf_counter()
            after, _ = play(method, courier, world, cohort(0, t, 20, 0.5))
            courier.examine(method, after.server, after.states, t)
            seconds[name].append(time.perf_counter() - began)
        world = after
    for name, each in seconds.items():
        ratio = statistics.median(e / w for e, w in zip(each[2:], seconds["workers"][2:], strict=True))
        print(f"{name:17}  {statistics.median(each[2:]):.3f} s a round  {ratio:.2f} times as long as workers")


def peers_workload(device: torch.device, shape: tuple[int, int, int], width: int, rounds: int, computes: list[str]) -> None:
    clients, per_round, pictures, epochs, batch = 100, 10, 420, 5, 64

    def build() -> ResNet9:
        return ResNet9(shape[0], 10, width)

    images = torch.randint(0, 256, (clients * pictures, *shape), dtype=torch.uint8, device=device)
    classes = torch.randint(0, 10, (clients * pictures,), device=device)
    recipe = Recipe("alternate", epochs, batch, 0.01)
    steps = per_round * epochs * -(-pictures // batch)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {cores()} cores"
    print(f"{machine}, torch {torch.__version__}, {rounds} rounds of {steps} steps")
    for name in computes:
        kind, precision = name.split("-")
        compute = choose(kind, build, device, 10, precision)
        w = initial_vector(build, 0).to(device)
        seconds = []
        for t in range(rounds + 2):
            began = time.perf_counter()
            jobs = []
            for k in torch.randperm(clients)[:per_round].tolist():
                rows = torch.arange(k * pictures, (k + 1) * pictures, device=device)
                jobs.append(Fit(w, Lesson(images, rows, classes[rows], rows[:0]), recipe, t * clients + k))
            w = average([fitted.w for fitted in compute.work(jobs)], [pictures] * per_round)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        median = statistics.median(seconds[2:])
        print(f"{name:12}  {median:.3f} s a round  {median / steps * 1e3:.2f} ms a client step  first round {seconds[0]:.1f} s")


if __name__ == "__main__":
    main()
