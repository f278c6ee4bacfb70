"""Claim: a FedAvg round of the peers' common workload takes a fraction of what federated libraries take.

Workload: ResNet-9 width 64, 32x32x3 pictures, 100 clients, 10 a round, 5 epochs, batch 64, 420 pictures each. Prints seconds
per round (median of the timed rounds) and milliseconds per client step, for every compute that the device offers.

    python bench/round.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from kithkin.compute import Fit, Lesson, Recipe, choose
from kithkin.helpers import average
from kithkin.nets import ResNet9, initial_vector


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--computes", nargs="+", default=["eager-fp32", "graphs-fp32", "graphs-bf16"])
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    width, clients, per_round, pictures = (64, 100, 10, 420) if cuda else (8, 4, 2, 128)
    epochs, batch, rounds = (5, 64, args.rounds) if cuda else (1, 64, 2)

    def build() -> ResNet9:
        return ResNet9(3, 10, width)

    images = torch.randint(0, 256, (clients * pictures, 3, 32, 32), dtype=torch.uint8, device=device)
    classes = torch.randint(0, 10, (clients * pictures,), device=device)
    recipe = Recipe("alternate", epochs, batch, 0.01)
    steps = per_round * epochs * -(-pictures // batch)
    print(f"{torch.cuda.get_device_name() if cuda else 'CPU'}, torch {torch.__version__}, {rounds} rounds of {steps} steps")
    for name in args.computes if cuda else ["eager-fp32"]:
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
            if cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        median = statistics.median(seconds[2:])
        print(f"{name:12}  {median:.3f} s a round  {median / steps * 1e3:.2f} ms a client step  first round {seconds[0]:.1f} s")


if __name__ == "__main__":
    main()
