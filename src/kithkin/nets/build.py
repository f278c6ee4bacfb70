"""Which network a run trains: ResNet-9, or the user's own, which is tried out before anything is done with it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# (torch's own stubs leave these open)

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kithkin import own
from kithkin.errors import KithkinError, unknown
from kithkin.nets.resnet9 import ResNet9
from kithkin.nets.vector import Layout, Network

Build = Callable[[], nn.Module]
RESNET9 = "resnet9"
SMALLEST = 8  # pixels: ResNet-9 halves them three times


def builder(model: str, shape: tuple[int, int, int], classes: int, width: int) -> Build:
    """What builds the named network for pictures of this shape (channels, height, width); other processes can have it."""
    channels, *size = shape
    if own.is_own(model):
        build = partial(build_own, model, channels, classes, (size[0], size[1]))
        try_out(model, build, shape, classes)
        return build
    if model != RESNET9:
        error = unknown("model", model, [RESNET9])
        raise KithkinError(error.problem, f"{error.remedy} Your own network is named as module:function.")
    if min(size) < SMALLEST:
        raise KithkinError(
            f"ResNet-9 wants pictures of {SMALLEST}x{SMALLEST} pixels or more, not {size[0]}x{size[1]}.",
            "Bring a network that fits: --model module:function (docs/own-model.md).",
        )
    return partial(ResNet9, channels, classes, width)


def build_own(model: str, channels: int, classes: int, size: tuple[int, int]) -> nn.Module:
    """The network that the user's function gives: it is called with channels, classes and size by name."""
    function = own.find(model, "--model")
    given: dict[str, Any] = {"channels": channels, "classes": classes, "size": size}
    call = f"{own.short(model)}(channels=..., classes=..., size=...)"
    if not callable(function):
        raise KithkinError(f"--model: {own.short(model)} is no function.", f"Define one that is called as {call}.")
    try:
        inspect.signature(function).bind(**given)
    except TypeError as e:
        raise KithkinError(f"--model: {own.short(model)} cannot be called so ({e}).", f"It is called as {call}.") from None
    except ValueError:
        pass  # its parameters cannot be known: calling it will tell
    try:
        module = function(**given)
    except KithkinError:
        raise
    except (Exception, SystemExit) as e:  # the user's code may raise anything
        given_as = ", ".join(f"{k}={v}" for k, v in given.items())
        raise KithkinError(f"--model: {own.short(model)} fails ({own.told(e)}).", f"It was called with {given_as}.") from e
    if not isinstance(module, nn.Module):
        raise KithkinError(
            f"--model: {own.short(model)} gives a {type(module).__name__}.", "Let it return a network, an nn.Module."
        )
    return module


@dataclass(frozen=True)
class Anatomy:
    """What methods go by of a network that sees some data."""

    layout: Layout
    classes: int | None = None  # left out, the last layer is taken to have one number for each
    dropout: bool = True  # whether MC-dropout has anything to drop
    signals: bool = False  # the data are no pictures
    open_bias: bool = True  # what is added to the last layer's bias is added to the logits, up to a number that all share


def anatomy_of(build: Build, shape: tuple[int, int, int], classes: int) -> Anatomy:
    """What is found of the network that is built so, on data of this shape and so many classes."""
    network = Network(build, torch.device("cpu"))
    drops = any(layer.dropped for layer in network.drops)
    return Anatomy(network.layout, classes, drops, shape[1] == 1, has_open_bias(network, shape))


def three_pictures(shape: tuple[int, int, int]) -> Tensor:
    return torch.linspace(-1, 1, 3 * torch.Size(shape).numel()).view(3, *shape)


@torch.no_grad()
def has_open_bias(network: Network, shape: tuple[int, int, int]) -> bool:
    """Tried: one class after another is favoured a little more, and the answers are looked at."""
    bias = network.layout.bias
    if not bias:
        return False
    network.module.eval()
    x, added = three_pictures(shape), torch.linspace(-1, 1, bias.shape[0])
    before = network(x)
    if before.shape[1] != len(added):
        return False
    network.w[bias.start : bias.stop] += added
    far = network(x) - before - added
    return torch.allclose(far, far.mean(1, keepdim=True), atol=1e-3)


def try_out(model: str, build: Build, shape: tuple[int, int, int], classes: int) -> None:
    """Refuse a network that a run could not train, or that would not give the same run twice."""

    def bad(problem: str, remedy: str) -> KithkinError:
        return KithkinError(f"--model {own.short(model)}: {problem}.", remedy)

    with torch.random.fork_rng(devices=[]):
        _check_tensors(build(), bad)
        network = Network(build, torch.device("cpu"))
        x = three_pictures(shape)

        def ask(what: Callable[[], Any], rows: int, when: str) -> Tensor:
            try:
                with torch.no_grad():
                    answer = what()
            except KithkinError as e:
                raise bad(e.problem.removesuffix("."), e.remedy) from e
            except (Exception, SystemExit) as e:  # the user's code may raise anything
                seen = "x".join(map(str, (rows, *shape)))
                raise bad(f"it fails {when} ({own.told(e)})", f"It must take float pictures {seen}, in [-1, 1].") from e
            if not isinstance(answer, Tensor):
                raise bad(f"it answers with a {type(answer).__name__}", "Let `forward` return one tensor of logits.")
            if tuple(answer.shape) != (rows, classes):
                raise bad(
                    f"it answers {rows} pictures of {classes} classes with {list(answer.shape)} {when}",
                    f"Let `forward` return logits [pictures, classes], here {[rows, classes]}.",
                )
            return answer

        start = torch.empty_like(network.w)
        network.save(start)

        def answers_anew() -> Tensor:
            """In training and in evaluation, of the network as it was built."""
            parts: list[Tensor] = []
            for training in (True, False):
                network.load(start)
                network.module.train(training)
                parts.append(network(x))
            return torch.cat(parts)

        network.module.train()
        before = torch.get_rng_state()
        ask(lambda: network(x), 3, "in training")
        if not torch.equal(before, torch.get_rng_state()):
            raise bad(
                "its forward draws random numbers of its own, so that no run could be repeated",
                "Use layers (nn.Dropout) instead of functional dropout, and dropout=0 inside attention and recurrent layers.",
            )
        if not network(x).requires_grad:
            raise bad(
                "nothing in it can be trained", "Let parameters require gradients, and do not detach what `forward` returns."
            )
        first = ask(answers_anew, 6, "in training or evaluation")
        network.module.train()
        ask(lambda: network(x / 2), 3, "in training")
        if not torch.allclose(first, ask(answers_anew, 6, "in training or evaluation"), rtol=1e-4, atol=1e-6, equal_nan=True):
            raise bad(
                "it remembers pictures elsewhere than in parameters and float buffers, so that no run could be repeated",
                "Keep what it learns in parameters or float32 buffers.",
            )
        network.module.eval()
        plain = ask(lambda: network(x), 3, "in evaluation")
        ask(lambda: network(x[:1]), 1, "in evaluation")
        trunk, tail = (getattr(network.module, name, None) for name in ("trunk", "tail"))
        if trunk and tail:

            def in_parts() -> Any:
                parts = network(x, part=trunk)
                return network(*((parts,) if isinstance(parts, Tensor) else parts), part=tail)

            if not torch.allclose(plain, ask(in_parts, 3, "as tail(trunk(x))"), atol=1e-4):
                raise bad("tail(trunk(x)) is not forward(x)", "Name those parts otherwise, or make them say the same.")
        if any(drop.dropped for drop in network.drops):
            keys = torch.arange(6)
            passes = ask(lambda: network.passes(x, keys.view(2, 3)).flatten(0, 1), 6, "under MC-dropout")
            with network.throwing(keys):
                whole = ask(lambda: network(x.repeat(2, 1, 1, 1)), 6, "under MC-dropout")
            if not torch.allclose(passes, whole, atol=1e-4, equal_nan=True):
                raise bad("its trunk has a dropout layer, which MC-dropout would pass by", "Let the tail begin with it.")


def _check_tensors(module: nn.Module, bad: Callable[[str, str], KithkinError]) -> None:
    trained = list(module.named_parameters())
    if not trained:
        raise bad("it has no parameters", "Let it have layers that can be trained.")
    for name, tensor in [*trained, *module.named_buffers()]:
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise bad(f"{name} has no shape before the first picture", "Use layers that are not lazy.")
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != torch.float32:
            raise bad(f"{name} is {tensor.dtype}", "Let it be float32, as torch makes it.")
        if not tensor.isfinite().all():
            raise bad(f"{name} is not finite before any training", "Mend how it is initialised.")
