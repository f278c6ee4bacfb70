"""Fit and Predict against plain PyTorch loops and hand-computed numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kithkin import dice, rng
from kithkin.compute import Eager, Fit, Lesson, Predict, Recipe, eager, schedule
from kithkin.nets import ResNet9, initial_vector

CPU = torch.device("cpu")
CLASSES = 3


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES))


def scale() -> nn.Module:
    """Two numbers a and b, the logits of a white picture of one pixel."""
    return nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))


def dropped() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, CLASSES))


class Viewed(nn.Linear):
    """A network that takes no batch of none: there is no telling what -1 stands for."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.reshape(input.size(0), -1))


def viewed() -> nn.Module:
    return Viewed(6, CLASSES)


def normed(momentum: float | None = 0.1) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, CLASSES))


def resnet() -> nn.Module:
    return ResNet9(1, CLASSES, width=2)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return dice.uniform(torch.tensor(seed), torch.Size(shape).numel()).view(shape)


def pictures(n: int, height: int = 2, width: int = 3) -> Tensor:
    return (numbers(n, 1, height, width) * 256).byte()


def lesson(n_s: int, n_u: int, images: Tensor | None = None, weights: Tensor | None = None) -> Lesson:
    """Rows from the back, so that a position in the lesson is never a row of the pictures."""
    images = pictures(n_s + n_u + 1) if images is None else images
    rows = torch.arange(n_s + n_u).flip(0) + 1
    targets = numbers(n_u, CLASSES, seed=1).mul(4).softmax(1)
    return Lesson(images, rows[:n_s], torch.arange(n_s) % CLASSES, rows[n_s:], targets, weights)


def recipe(objective: str = "alternate", **changes) -> Recipe:
    return replace(Recipe(objective, epochs=2, batch_size=4, lr=0.3, momentum=0.0), **changes)


def fit(build: Callable[[], nn.Module], lesson: Lesson, recipe: Recipe, key: int = 5, w: Tensor | None = None):
    w = initial_vector(build, 0) if w is None else w
    return Eager(build, CPU).fit(Fit(w, lesson, recipe, key))


def linear_batches(lesson: Lesson, recipe: Recipe, key: int = 5) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions in the labelled and unlabelled lists that count, step by step."""
    for step in schedule(len(lesson.labelled), len(lesson.unlabelled), recipe, key):
        halves = (step.labelled, step.unlabelled)
        yield tuple(torch.from_numpy(h.rows[h.weights > 0]) if h else torch.empty(0, dtype=torch.int64) for h in halves)


def usual_loop(lesson: Lesson, recipe: Recipe, share_s: float = 1, share_u: float = 1) -> tuple[Tensor, float]:
    """How anyone would write it: a layer, an optimiser, batches of which the last is smaller."""
    layer = nn.Linear(6, CLASSES)
    start = initial_vector(linear, 0)
    layer.weight.data, layer.bias.data = start[:18].view(CLASSES, 6).clone(), start[18:].clone()
    optimiser = torch.optim.SGD(layer.parameters(), lr=recipe.lr, momentum=recipe.momentum)
    x = lesson.images.flatten(1).double().div(127.5).sub(1).float()
    losses = []
    for s, u in linear_batches(lesson, recipe):
        loss = torch.zeros(())
        if len(s):
            loss = loss + share_s * functional.cross_entropy(layer(x[lesson.labelled[s]]), lesson.classes[s])
        if len(u):
            log_f = layer(x[lesson.unlabelled[u]]).log_softmax(1)
            each = functional.kl_div(log_f, lesson.targets[u], reduction="none").sum(1)
            loss = loss + share_u * (each if lesson.weights is None else each * lesson.weights[u]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return torch.cat([layer.weight.detach().flatten(), layer.bias.detach()]), sum(losses) / len(losses)


def assert_usual(lesson: Lesson, recipe: Recipe, *shares: float) -> None:
    w, loss = usual_loop(lesson, recipe, *shares)
    fitted = fit(linear, lesson, recipe)
    assert torch.allclose(fitted.w, w, atol=1e-5)
    assert fitted.loss.item() == pytest.approx(loss, abs=1e-5)
    assert (w - initial_vector(linear, 0)).abs().max() > 0.01  # it did learn


# -- fit: the usual loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("n", [8, 10, 1])  # full batches, a short last one, one picture
def test_labelled_data_train_as_sgd_on_cross_entropy(n: int, momentum: float):
    assert_usual(lesson(n, 0), recipe(momentum=momentum))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("n", [8, 10, 1])
def test_unlabelled_data_train_as_sgd_on_the_divergence_to_their_targets(n: int, momentum: float):
    assert_usual(lesson(0, n), recipe(momentum=momentum))


def test_alternate_does_the_one_then_the_other():
    assert_usual(lesson(7, 10), recipe(momentum=0.9))


@pytest.mark.parametrize(("n_s", "n_u"), [(3, 9), (10, 5), (6, 0), (0, 6)])
def test_weighted_takes_mu_of_the_one_and_the_rest_of_the_other(n_s: int, n_u: int):
    mu = n_s / (n_s + n_u)
    assert_usual(lesson(n_s, n_u), recipe("weighted", momentum=0.9), mu, 1 - mu)


@pytest.mark.parametrize("objective", ["alternate", "weighted"])
def test_targets_count_by_their_weights(objective: str):
    weighted = lesson(4, 6, weights=torch.tensor([1, 0, 0.5, 2, 0, 1]))
    assert_usual(weighted, recipe(objective), *((0.4, 0.6) if objective == "weighted" else ()))


def test_targets_without_weight_teach_nothing():
    start = initial_vector(linear, 0)
    fitted = fit(linear, lesson(0, 6, weights=torch.zeros(6)), recipe())
    assert torch.equal(fitted.w, start)
    assert fitted.loss == 0


def test_a_certain_target_is_a_class():
    """KL to a one-hot target is cross-entropy; 0 log 0 is 0."""
    classes = torch.arange(8) % CLASSES
    rows, none = torch.arange(8), torch.arange(0)
    images = pictures(8)
    hard = Lesson(images, none, none, rows, functional.one_hot(classes, CLASSES).float())
    named = Lesson(images, rows, classes, none)
    one = recipe(batch_size=8, epochs=1)  # one batch: the order of rows does not matter
    assert torch.allclose(fit(linear, hard, one).w, fit(linear, named, one).w, atol=1e-6)


def test_the_models_own_answers_teach_nothing():
    images, rows, none = pictures(4), torch.arange(4), torch.arange(0)
    w = initial_vector(linear, 0)
    own = Eager(linear, CPU).predict(Predict(w, images, rows))
    fitted = fit(linear, Lesson(images, none, none, rows, own), recipe(batch_size=4, epochs=1))
    assert torch.allclose(fitted.w, w, atol=1e-6)
    assert fitted.loss.item() == pytest.approx(0, abs=1e-6)


# -- fit: hand-computed pulls -------------------------------------------------------------------------------------------------

WHITE = Lesson(torch.tensor([[[[255]]]], dtype=torch.uint8), torch.tensor([0]), torch.tensor([0]), torch.arange(0))


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def fit_scale(w: Tensor | None = None, **changes):
    """From (0, 0), one white picture of class 0: the gradient at (a, -a) is (p - 1, 1 - p), p = sigmoid(2a)."""
    return fit(scale, WHITE, recipe(batch_size=1, lr=1.0, **changes), w=torch.zeros(2) if w is None else w)


def both_ways(a: float) -> Tensor:
    return torch.tensor([a, -a])


def test_two_plain_steps():
    fitted = fit_scale()
    assert torch.allclose(fitted.w, both_ways(0.5 + 0.268941))  # 1/2, then 1 - sigmoid(1)
    assert fitted.loss.item() == pytest.approx((0.693147 + 0.313262) / 2)  # log 2 and log(1 + 1/e)


def test_momentum_carries_the_first_step_on():
    assert torch.allclose(fit_scale(momentum=0.5).w, both_ways(0.5 + 0.5 * 0.5 + 0.268941))


def test_momentum_starts_at_rest_in_every_fit():
    machine = Eager(scale, CPU)
    job = Fit(torch.zeros(2), WHITE, recipe(batch_size=1, lr=1.0, momentum=0.9), 5)
    assert torch.equal(machine.fit(job).w, machine.fit(job).w)


@pytest.mark.parametrize(("prox", "a"), [(0.5, 0.518941), (1.0, 0.268941), (2.0, -0.231059)])
def test_prox_pulls_back_to_the_start(prox: float, a: float):
    fitted = fit_scale(prox=prox)
    assert torch.allclose(fitted.w, both_ways(a), atol=1e-6)  # the pull of the second step is prox * 1/2
    assert fitted.anchor is fitted.w  # none that follows


def test_prox_pulls_to_the_start_wherever_it_is():
    fitted = fit_scale(w=both_ways(1.0), prox=1.0)
    first = 1 + 1 - sigmoid(2)
    second = first + 1 - sigmoid(2 * first) - (first - 1)
    assert torch.allclose(fitted.w, both_ways(second), atol=1e-6)


def test_the_loss_reported_leaves_the_pull_out():
    assert fit_scale(prox=1.0).loss.item() == pytest.approx(0.503204, abs=1e-5)  # as without, since the first step is free


def test_inner_steps_stay_on_a_batch():
    assert torch.allclose(fit_scale(epochs=1, inner_steps=2).w, fit_scale(epochs=2).w)
    assert fit_scale(epochs=1, inner_steps=2).loss.item() == pytest.approx(0.503204, abs=1e-5)


def test_the_anchor_follows_after_each_batch():
    """pFedMe with K=2, lambda=1: theta takes two steps on a batch, then w goes half the way to theta."""
    once = fit_scale(epochs=1, inner_steps=2, prox=1.0, anchor_rate=0.5)
    assert torch.allclose(once.w, both_ways(0.268941), atol=1e-6)
    assert torch.allclose(once.anchor, both_ways(0.134471), atol=1e-6)
    twice = fit_scale(epochs=2, inner_steps=2, prox=1.0, anchor_rate=0.5)
    theta, anchor = 0.268941, 0.134471
    for _ in range(2):
        theta += 1 - sigmoid(2 * theta) - (theta - anchor)
    assert torch.allclose(twice.w, both_ways(theta), atol=1e-5)
    assert torch.allclose(twice.anchor, both_ways((anchor + theta) / 2), atol=1e-5)


def test_an_anchor_that_follows_all_the_way_ends_at_the_model():
    fitted = fit_scale(prox=1.0, anchor_rate=1.0)
    assert torch.equal(fitted.anchor, fitted.w)
    assert torch.allclose(fitted.w, both_ways(0.768941))  # it never pulls


def test_the_anchor_takes_the_running_statistics_over():
    fitted = fit(normed, lesson(8, 0), recipe(prox=0.1, anchor_rate=1e-9))
    start = initial_vector(normed, 0)
    trained = len(start) - 12
    assert torch.allclose(fitted.anchor[:trained], start[:trained], atol=1e-7)
    assert torch.equal(fitted.anchor[trained:], fitted.w[trained:])
    assert not torch.equal(fitted.w[trained:], start[trained:])


# -- fit: what must hold for any network --------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [linear, dropped, normed])
@pytest.mark.parametrize("objective", ["alternate", "weighted"])
def test_same_job_same_bits_whatever_was_done_before(build, objective: str):
    machine, other = Eager(build, CPU), Eager(build, CPU)
    job = Fit(initial_vector(build, 0), lesson(6, 6), recipe(objective, momentum=0.9), 5)
    first = machine.fit(job)
    machine.fit(replace(job, key=6, w=job.w + 1))
    machine.predict(Predict(job.w * 2, job.lesson.images, job.lesson.labelled, passes=2))
    for again in (machine.fit(job), other.fit(job)):
        assert torch.equal(again.w, first.w)
        assert torch.equal(again.anchor, first.anchor)
        assert again.loss == first.loss


def test_a_norm_that_counts_its_batches_counts_anew_in_every_fit():
    """With momentum None a running statistic is the mean over the batches of this fit, not of all that ran here."""
    machine = Eager(lambda: normed(None), CPU)
    data = lesson(4, 0)
    x = data.images[data.labelled].flatten(1).float() / 127.5 - 1
    for _ in range(2):
        fitted = machine.fit(Fit(initial_vector(normed, 0), data, recipe(), 5))
        assert torch.allclose(fitted.w[-12:-6], x.mean(0), atol=1e-6)


@pytest.mark.parametrize("build", [linear, dropped])
def test_another_key_another_result(build):
    assert not torch.equal(fit(build, lesson(9, 9), recipe(), 5).w, fit(build, lesson(9, 9), recipe(), 6).w)


def test_the_key_drives_the_dropout():
    one = recipe(batch_size=8, epochs=1)  # one batch of all: its order does not matter, its masks do
    assert torch.allclose(fit(linear, lesson(8, 0), one, 5).w, fit(linear, lesson(8, 0), one, 6).w, atol=1e-6)
    assert not torch.allclose(fit(dropped, lesson(8, 0), one, 5).w, fit(dropped, lesson(8, 0), one, 6).w, atol=1e-3)


def test_dropout_trains_with_the_masks_of_the_rows_keys():
    """One step by hand; step 0's labelled rows have the keys from key + batch size on."""
    data, one = lesson(4, 0), recipe(epochs=1)
    (s, _), *_ = linear_batches(data, one)
    kept = dice.bytes_(torch.arange(5 + 4, 5 + 8) ^ rng.key("dropout layer", 0), 6) >= 128
    x = (data.images[data.labelled[s]].flatten(1).float() / 127.5 - 1) * kept * 2
    w = initial_vector(dropped, 0)
    error = (x @ w[:18].view(3, 6).T + w[18:]).softmax(1) - functional.one_hot(data.classes[s], CLASSES)
    gradient = torch.cat([(error.T @ x / 4).flatten(), error.mean(0)])
    assert torch.allclose(fit(dropped, data, one).w, w - 0.3 * gradient, atol=1e-6)


def test_no_two_rows_of_a_fit_have_one_key(monkeypatch: pytest.MonkeyPatch):
    seen: list[Tensor] = []
    views = eager.views
    monkeypatch.setattr(eager, "views", lambda *halves: seen.append(views(*halves).keys) or views(*halves))
    fit(linear, lesson(8, 12), recipe("sum", epochs=2))
    assert len(torch.cat(seen).unique()) == len(torch.cat(seen)) == 2 * 3 * (4 + 4)


@pytest.mark.parametrize("build", [linear, normed])
def test_a_fit_leaves_its_job_as_it_was(build):
    w, data = initial_vector(build, 0), lesson(6, 6)
    copies = [t.clone() for t in (w, data.images, data.labelled, data.classes, data.unlabelled, data.targets)]
    fitted = fit(build, data, recipe(prox=0.1, anchor_rate=0.1), w=w)
    after = (w, data.images, data.labelled, data.classes, data.unlabelled, data.targets)
    assert all(torch.equal(a, b) for a, b in zip(after, copies, strict=True))
    assert not torch.equal(fitted.w, w)


def test_what_a_fit_gave_stays_when_the_next_one_runs():
    machine = Eager(linear, CPU)
    job = Fit(initial_vector(linear, 0), lesson(6, 6), recipe(), 5)
    first = machine.fit(job)
    kept = first.w.clone(), first.anchor.clone(), first.loss.clone()
    machine.fit(replace(job, w=job.w + 1))
    assert torch.equal(first.w, kept[0])
    assert torch.equal(first.anchor, kept[1])
    assert torch.equal(first.loss, kept[2])


def test_running_statistics_follow_the_training_batches():
    data, one = lesson(4, 0), recipe(epochs=1)
    x = data.images[data.labelled].flatten(1).float() / 127.5 - 1
    fitted = fit(normed, data, one)
    assert torch.allclose(fitted.w[-12:-6], 0.1 * x.mean(0), atol=1e-6)
    assert torch.allclose(fitted.w[-6:], 0.9 + 0.1 * x.var(0), atol=1e-6)


@pytest.mark.parametrize("objective", ["alternate", "weighted", "fixmatch"])
@pytest.mark.parametrize(("n_s", "n_u"), [(5, 0), (0, 5), (1, 0), (0, 1), (1, 1), (1, 6)])
def test_a_missing_half_or_a_single_picture_gives_finite_numbers(objective: str, n_s: int, n_u: int):
    start = initial_vector(resnet, 0)
    fitted = fit(resnet, lesson(n_s, n_u, pictures(n_s + n_u + 1, 8, 8)), recipe(objective, lr=0.01, threshold=0.0))
    assert fitted.w.isfinite().all()
    assert fitted.loss.isfinite()
    assert not torch.equal(fitted.w, start)


@pytest.mark.parametrize("objective", ["alternate", "weighted", "fixmatch"])
@pytest.mark.parametrize(("counts", "epochs"), [((0, 0), 2), ((5, 5), 0)])
def test_nothing_to_learn_changes_nothing(objective: str, counts: tuple[int, int], epochs: int):
    start = initial_vector(normed, 0)
    fitted = fit(normed, lesson(*counts), recipe(objective, epochs=epochs, prox=0.1, anchor_rate=0.1))
    assert torch.equal(fitted.w, start)
    assert torch.equal(fitted.anchor, start)
    assert fitted.loss == 0


# -- predict ------------------------------------------------------------------------------------------------------------------


def test_a_prediction_is_the_softmax_of_the_logits():
    """Logits (a, b) of a white picture are (0, log 3), of a black one (0, -log 3)."""
    images = torch.tensor([255, 0], dtype=torch.uint8).view(2, 1, 1, 1)
    p = Eager(scale, CPU).predict(Predict(torch.tensor([3.0, 1]).log().flip(0), images, torch.tensor([0, 1, 0])))
    assert torch.allclose(p, torch.tensor([[0.25, 0.75], [0.75, 0.25], [0.25, 0.75]]))


@pytest.mark.parametrize("passes", [0, 3])
@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch, passes: int, chunk: int):
    job = Predict(initial_vector(resnet, 0), pictures(9, 8, 8), torch.tensor([8, 1, 2, 2, 0, 5, 4]), passes, key=5)
    whole = Eager(resnet, CPU).predict(job)
    monkeypatch.setattr(eager, "CHUNK", chunk)
    assert torch.allclose(Eager(resnet, CPU).predict(job), whole, atol=1e-6)


@pytest.mark.parametrize("passes", [0, 3])
@pytest.mark.parametrize("build", [dropped, resnet, viewed])
def test_no_rows_no_answers_but_their_shape(build, passes: int):
    images = pictures(4, 8, 8) if build is resnet else pictures(4)
    p = Eager(build, CPU).predict(Predict(initial_vector(build, 0), images, torch.arange(0), passes))
    assert p.shape == (0, CLASSES)


def test_passes_give_the_mean_of_their_softmaxes():
    images, rows, T, key = pictures(6), torch.tensor([5, 0, 3, 3]), 4, 11
    w = initial_vector(dropped, 0)
    x = images[rows].flatten(1).float() / 127.5 - 1
    expected = torch.zeros(4, CLASSES)
    for t in range(T):
        keys = key + t * len(rows) + torch.arange(len(rows))
        kept = dice.bytes_(keys ^ rng.key("dropout layer", 0), 6) >= 128
        expected += ((x * kept * 2) @ w[:18].view(3, 6).T + w[18:]).softmax(1) / T
    p = Eager(dropped, CPU).predict(Predict(w, images, rows, T, key))
    assert torch.allclose(p, expected, atol=1e-6)
    assert torch.allclose(p.sum(1), torch.ones(4))
    assert not torch.allclose(p[2], p[3], atol=1e-4)  # the same picture, twice, with its own masks


def test_without_dropout_layers_passes_change_nothing():
    images, rows = pictures(6), torch.arange(6)
    w = initial_vector(normed, 0)
    plain, mc = (Eager(normed, CPU).predict(Predict(w, images, rows, passes)) for passes in (0, 5))
    assert torch.allclose(plain, mc, atol=1e-6)


@pytest.mark.parametrize("passes", [0, 3])
def test_a_shift_is_added_to_the_logits_as_the_last_bias_is(passes: int):
    images, rows, shift = pictures(4), torch.arange(4), torch.linspace(-2, 2, CLASSES)
    machine, w = Eager(dropped, CPU), initial_vector(dropped, 0)
    moved = torch.cat([w[:-CLASSES], w[-CLASSES:] + shift])  # its vector ends with that bias
    mine = machine.predict(Predict(w, images, rows, passes, 5, shift))
    assert torch.allclose(mine, machine.predict(Predict(moved, images, rows, passes, 5)), atol=1e-6)
    assert not torch.allclose(mine, machine.predict(Predict(w, images, rows, passes, 5)), atol=1e-2)


@pytest.mark.parametrize("passes", [0, 3])
def test_norms_use_running_statistics_right_after_training_too(passes: int):
    w = initial_vector(normed, 0)
    w[-12:-6], w[-6:] = 0.5, 4.0
    images, rows = pictures(6), torch.arange(6)
    machine = Eager(normed, CPU)
    machine.fit(Fit(w, lesson(6, 0), recipe(), 5))
    p = machine.predict(Predict(w, images, rows, passes))
    x = (images.flatten(1).float() / 127.5 - 1 - 0.5) / (4 + 1e-5) ** 0.5
    weight, bias = w[:6], w[6:12]
    expected = ((x * weight + bias) @ w[12:30].view(3, 6).T + w[30:33]).softmax(1)
    assert torch.allclose(p, expected, atol=1e-6)
    assert torch.equal(machine.network.w, w)  # and leave them alone


def test_same_key_same_passes_and_another_differs():
    machine = Eager(dropped, CPU)
    job = Predict(initial_vector(dropped, 0), pictures(6), torch.arange(6), 3, key=1)
    assert torch.equal(machine.predict(job), machine.predict(job))
    assert not torch.equal(machine.predict(job), machine.predict(replace(job, key=2)))
    assert torch.equal(machine.predict(replace(job, passes=0)), machine.predict(replace(job, passes=0, key=2)))


def test_the_largest_key_will_do():
    """Keys wrap around; none is out of range."""
    last = 2**63 - 1
    w = initial_vector(dropped, 0)
    assert Eager(dropped, CPU).predict(Predict(w, pictures(6), torch.arange(6), 3, last)).isfinite().all()
    assert fit(dropped, lesson(6, 6), recipe("fixmatch"), last).w.isfinite().all()


def test_work_answers_in_the_order_of_the_jobs():
    machine = Eager(linear, CPU)
    w = initial_vector(linear, 0)
    jobs = [
        Predict(w, pictures(6), torch.arange(2)),
        Fit(w, lesson(6, 0), recipe(), 5),
        Predict(w + 1, pictures(6), torch.arange(3)),
    ]
    first, fitted, last = machine.work(jobs)
    assert torch.equal(first, machine.predict(jobs[0]))
    assert torch.equal(fitted.w, machine.fit(jobs[1]).w)
    assert torch.equal(last, machine.predict(jobs[2]))
    assert machine.work([]) == []
