"""pFedMe (Dinh et al., NeurIPS 2020, Algorithm 1): Moreau envelopes.

On each batch theta approaches argmin f(theta) + lambda/2 |theta - w|^2 by a few steps (7), here at the rate of every method;
then w <- w - eta lambda (w - theta) (line 8); the server takes (1 - beta) w + beta mean(w_k) (line 11). The personal model is
theta, and theta is what is evaluated.
"""

from __future__ import annotations

from dataclasses import replace

from kithkin.methods.fedavg import FedAvg


def pfedme(fedavg: FedAvg, lam: float, eta: float, beta: float, inner_steps: int, trained: int) -> FedAvg:
    recipe = replace(fedavg.recipe, prox=lam, anchor_rate=eta * lam, inner_steps=inner_steps, momentum=0.0)
    return replace(fedavg, recipe=recipe, beta=beta, trained=trained, moreau=True)
