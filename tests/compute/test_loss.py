"""FixMatch's loss, by hand on a linear network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kithkin import dice
from kithkin.compute import Eager, Fit, Lesson, Recipe, schedule
from kithkin.compute.loss import STRONG, Half, centred, scaled, step_loss
from kithkin.compute.loss import views as views_of
from kithkin.data import augment
from kithkin.nets import Network, initial_vector

CPU = torch.device("cpu")
FIXMATCH = Recipe("fixmatch", epochs=1, batch_size=6, lr=1.0, momentum=0.0, threshold=0.48)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(25, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(25), nn.Linear(25, 3))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(25, 3))


def pictures(n: int) -> Tensor:
    return (dice.uniform(torch.tensor(0), n * 25) * 256).byte().view(n, 1, 5, 5)


def lesson(n_s: int, n_u: int) -> Lesson:
    return Lesson(pictures(n_s + n_u), torch.arange(n_s), torch.arange(n_s) % 3, torch.arange(n_u) + n_s)


def half(images: Tensor, keys: Tensor, targets: Tensor | None = None, weights: Tensor | None = None) -> Half:
    weights = torch.full((len(keys),), 1 / len(keys)) if weights is None else weights
    return Half(images, targets, weights, keys, torch.arange(len(keys)))


def loss_of(net: Network, recipe: Recipe, labelled: Half | None, unlabelled: Half | None, mu: Tensor | float) -> Tensor:
    return step_loss(net, recipe, views_of(recipe, labelled, unlabelled), torch.as_tensor(mu))[0]


def fit(build: Callable[[], nn.Module], lesson: Lesson, recipe: Recipe, w: Tensor | None = None):
    return Eager(build, CPU).fit(Fit(initial_vector(build, 0) if w is None else w, lesson, recipe, 5))


def sharp() -> Tensor:
    """A start whose answers are neither all certain nor all uncertain."""
    return dice.uniform(torch.tensor(1), 78) * 0.6 - 0.3


def test_pictures_are_seen_from_minus_1_to_1():
    assert centred(scaled(torch.tensor([0, 51, 255], dtype=torch.uint8))).tolist() == pytest.approx([-1, -0.6, 1])


@pytest.mark.parametrize("flip", [False, True])
def test_fixmatch_in_one_step_by_hand(flip: bool):
    """Labelled: CE of the weak view. Unlabelled: CE of the strong view with the weak view's class, where that is certain."""
    recipe, data, w = replace(FIXMATCH, flip=flip, lambda_u=0.7), lesson(5, 6), sharp()
    (step,) = schedule(5, 6, recipe, 5)
    s, u = torch.from_numpy(step.labelled.rows[:5]), torch.from_numpy(step.unlabelled.rows)
    keys_u, keys_s = 5 + torch.arange(6), 5 + 6 + torch.arange(5)
    x = data.images.float() / 255
    x_s, x_u = x[data.labelled[s]], x[data.unlabelled[u]]
    W, b = w[:75].view(3, 25).clone().requires_grad_(), w[75:].clone().requires_grad_()

    def logits(view: Tensor) -> Tensor:
        return (view.flatten(1) * 2 - 1) @ W.T + b

    p = logits(augment.weak(x_u, keys_u, flip)).detach().softmax(1)
    certain = p.max(1).values >= 0.48
    assert 0 < certain.sum() < 6  # else this would show little
    ce_s = functional.cross_entropy(logits(augment.weak(x_s, keys_s, flip)), data.classes[s])
    ce_u = functional.cross_entropy(logits(augment.strong(x_u, keys_u ^ STRONG, flip)), p.argmax(1), reduction="none")
    loss = ce_s + 0.7 * (ce_u * certain).sum() / 6
    loss.backward()

    fitted = fit(linear, data, recipe, w)
    assert fitted.loss.item() == pytest.approx(loss.item(), abs=1e-5)
    assert torch.allclose(fitted.w, w - torch.cat([W.grad.flatten(), b.grad]), atol=1e-5)
    assert torch.allclose(fitted.p_u[u], p, atol=1e-6)


def test_a_fit_tells_what_fixmatch_took_each_picture_for_when_it_last_trained_with_it():
    """Four pictures in batches of six: two of them come twice in a step, in another view, which weighs nothing."""
    recipe, data = replace(FIXMATCH, epochs=2, lr=0.0), lesson(5, 4)
    last = schedule(5, 4, recipe, 5)[1].unlabelled
    real = last.weights > 0
    assert real.tolist() == [True] * 4 + [False] * 2
    net = Network(linear, CPU)
    net.load(sharp())
    x = augment.weak(scaled(data.images[data.unlabelled[torch.from_numpy(last.rows)]]), 5 + torch.arange(12, 18), False)
    p = net.module(centred(x)).softmax(1)
    said = fit(linear, data, recipe, sharp()).p_u
    assert torch.allclose(said[torch.from_numpy(last.rows[real])], p[:4], atol=1e-6)
    assert not torch.allclose(said[torch.from_numpy(last.rows[~real])], p[4:], atol=1e-3)
    assert fit(linear, lesson(5, 0), recipe, sharp()).p_u is None
    given = replace(data, targets=torch.full((4, 3), 1 / 3))
    assert fit(linear, given, replace(recipe, objective="alternate"), sharp()).p_u is None


def test_an_unreachable_threshold_leaves_the_labelled_loss():
    data, recipe = lesson(9, 7), replace(FIXMATCH, epochs=3, momentum=0.9, lr=0.1)
    refused = fit(linear, data, replace(recipe, threshold=1.1), sharp())
    unweighed = fit(linear, data, replace(recipe, threshold=0.0, lambda_u=0.0), sharp())
    alone = fit(linear, replace(data, unlabelled=data.unlabelled[:0]), recipe, sharp())
    assert torch.equal(refused.w, unweighed.w)
    assert torch.allclose(refused.w, alone.w, atol=1e-5)
    assert not torch.allclose(refused.w, fit(linear, data, replace(recipe, threshold=0.0), sharp()).w, atol=1e-3)


def test_unlabelled_alone_with_an_unreachable_threshold_learns_nothing():
    fitted = fit(linear, lesson(0, 7), replace(FIXMATCH, threshold=1.1), sharp())
    assert torch.equal(fitted.w, sharp())
    assert fitted.loss == 0


def test_certain_means_at_least_the_threshold():
    """With all weights 0 but a bias of log 2 every picture has p = 2/4, but for rounding."""
    w = torch.zeros(78)
    w[75] = torch.tensor(2.0).log()
    x = Half(pictures(2), None, torch.tensor([0.5, 0.5]), torch.arange(2), torch.arange(2))
    losses = []
    for threshold in (0.499, float(w[75:].softmax(0)[0]), 0.501):
        net = Network(linear, CPU)
        net.load(w)
        losses.append(loss_of(net, replace(FIXMATCH, threshold=threshold), None, x, mu=0).item())
    assert losses == pytest.approx([0.693147, 0.693147, 0])


def test_no_gradient_flows_through_the_guess():
    net = Network(linear, CPU)
    net.load(sharp())
    keys = torch.arange(6)
    loss_of(net, replace(FIXMATCH, threshold=0.0), None, half(pictures(6), keys), mu=0).backward()
    x = pictures(6).float() / 255
    guess = net.module(centred(augment.weak(x, keys, False))).argmax(1)
    strong = centred(augment.strong(x, keys ^ STRONG, False)).flatten(1)
    error = (net.module(strong).softmax(1) - functional.one_hot(guess, 3)).detach() / 6
    assert torch.allclose(net.g, torch.cat([(error.T @ strong).flatten(), error.sum(0)]), atol=1e-6)


def test_the_guess_is_made_as_in_evaluation_and_the_rest_in_one_training_pass():
    """Running statistics see the labelled weak views and the strong views, together and once."""
    keys_s, keys_u = torch.arange(3), torch.arange(100, 104)
    images = pictures(7)
    net = Network(normed, CPU)
    net.module.train()
    loss_of(net, FIXMATCH, half(images[:3], keys_s, torch.tensor([0, 1, 2])), half(images[3:], keys_u), mu=0)
    x = images.float() / 255
    views = torch.cat([augment.weak(x[:3], keys_s, False), augment.strong(x[3:], keys_u ^ STRONG, False)])
    seen = centred(views).flatten(1)
    assert torch.allclose(net.module[1].running_mean, 0.1 * seen.mean(0), atol=1e-6)
    assert torch.allclose(net.module[1].running_var, 0.9 + 0.1 * seen.var(0), atol=1e-6)
    assert net.module.training


def test_the_guess_is_made_without_dropout():
    net = Network(dropped, CPU)
    net.load(sharp())
    modes: list[bool] = []
    net.module[1].register_forward_hook(lambda m, *_: modes.append(m.keys is None))
    loss_of(net, FIXMATCH, None, half(pictures(6), torch.arange(6)), mu=0)
    assert modes == [True, False]


@pytest.mark.parametrize("objective", ["alternate", "weighted", "fixmatch"])
def test_rows_without_weight_do_not_count(objective: str):
    """The same loss whichever pictures fill the batch up."""
    recipe, weights = replace(FIXMATCH, objective=objective, threshold=0.0), torch.tensor([0.5, 0.5, 0, 0])
    images, keys = pictures(8), torch.arange(4)
    targets = torch.eye(3)[torch.tensor([0, 1, 2, 0])]
    losses = []
    for rows in ([0, 1, 2, 3], [0, 1, 6, 7]):
        net = Network(linear, CPU)
        net.load(sharp())
        labelled = half(images[rows], keys, torch.tensor([0, 1, rows[2] % 3, 0]), weights)
        losses.append(loss_of(net, recipe, labelled, half(images[rows], keys + 50, targets, weights), mu=0.5).item())
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0] > 0.1


def test_weighted_and_plain_sums_by_hand():
    """All logits equal: CE is log 3; KL to (1, 0, 0) is log 3, to (1/2, 1/2, 0) log 3 - log 2, to thirds 0."""
    targets = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]])
    net = Network(linear, CPU)
    net.load(torch.zeros(78))
    labelled = half(pictures(2), torch.arange(2), torch.tensor([0, 2]))
    unlabelled = half(pictures(3), torch.arange(3), targets)
    log_2, log_3 = 0.693147, 1.098612
    far = (2 * log_3 - log_2) / 3
    plain, weighted = replace(FIXMATCH, objective="alternate"), replace(FIXMATCH, objective="weighted")
    both = replace(FIXMATCH, objective="sum")
    assert loss_of(net, plain, labelled, None, mu=0.3).item() == pytest.approx(log_3, abs=1e-5)
    assert loss_of(net, plain, None, unlabelled, mu=0.3).item() == pytest.approx(far, abs=1e-5)
    assert loss_of(net, weighted, labelled, unlabelled, mu=0.3).item() == pytest.approx(0.3 * log_3 + 0.7 * far, abs=1e-5)
    assert loss_of(net, both, labelled, unlabelled, mu=0.3).item() == pytest.approx(log_3 + far, abs=1e-5)


def test_only_fixmatch_augments_unasked():
    keys = torch.arange(6)
    net = Network(linear, CPU)
    net.load(sharp())
    x, classes = half(pictures(6), keys, torch.arange(6) % 3), torch.arange(6) % 3
    plain = functional.cross_entropy(net.module(centred(scaled(pictures(6)))), classes)
    alternate, fixmatch = (loss_of(net, r, x, None, mu=1) for r in (replace(FIXMATCH, objective="alternate"), FIXMATCH))
    assert alternate.item() == pytest.approx(plain.item(), abs=1e-6)
    assert fixmatch.item() != pytest.approx(plain.item(), abs=1e-3)


@pytest.mark.parametrize(("views", "moved"), [("weak", 1.0), ("weak", 0.5), ("strong", 1.0), ("strong", 0.5)])
def test_given_targets_may_be_taught_on_augmented_pictures(views: str, moved: float):
    """Labelled pictures weakly, unlabelled ones as the recipe says; the targets stay as they are given."""
    keys, targets = torch.arange(6), torch.eye(3)[torch.arange(6) % 3]
    net = Network(linear, CPU)
    net.load(sharp())
    recipe = replace(FIXMATCH, objective="weighted", views=views, moved=moved)
    labelled, unlabelled = half(pictures(6), keys, torch.arange(6) % 3), half(pictures(6), keys + 9, targets)
    x = scaled(pictures(6))
    seen = augment.weak(x, keys + 9, False, moved) if views == "weak" else augment.strong(x, (keys + 9) ^ STRONG, False)
    own = functional.cross_entropy(net.module(centred(augment.weak(x, keys, False, moved))), torch.arange(6) % 3)
    far = functional.cross_entropy(net.module(centred(seen)), torch.arange(6) % 3)
    got = loss_of(net, recipe, labelled, unlabelled, mu=torch.tensor(0.25))
    assert got.item() == pytest.approx((0.25 * own + 0.75 * far).item(), abs=1e-5)


def test_a_steps_pictures_are_augmented_once_whatever_the_number_of_inner_steps(monkeypatch: pytest.MonkeyPatch):
    drawn: list[int] = []
    strong = augment.strong
    monkeypatch.setattr(augment, "strong", lambda x, keys, flip: drawn.append(len(x)) or strong(x, keys, flip))
    steps = len(schedule(6, 12, FIXMATCH, 5))
    once, thrice = (fit(linear, lesson(6, 12), replace(FIXMATCH, inner_steps=n), sharp()) for n in (1, 3))
    assert drawn == [6] * 2 * steps
    assert not torch.allclose(once.w, thrice.w)
