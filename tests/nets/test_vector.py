"""A network as a vector, and a vector as a network."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from kithkin import rng
from kithkin.errors import KithkinError
from kithkin.nets import Layout, Network, ResNet9, dropouts, initial_vector, layout_of
from kithkin.nets.vector import cut, read

CPU = torch.device("cpu")


def odd_names() -> nn.Module:
    """Norms that are not called norm, and layers that are."""
    return nn.Sequential(
        OrderedDict(
            norm=nn.Conv2d(1, 3, 3),
            zebra=nn.BatchNorm2d(3),
            deep=nn.Sequential(OrderedDict(bn=nn.Conv2d(3, 4, 1), x=nn.GroupNorm(2, 4), y=nn.BatchNorm2d(4, affine=False))),
            flat=nn.Flatten(),
            batchnorm=nn.Linear(4 * 36, 5),
            z=nn.LayerNorm(5),
            running_mean=nn.Linear(5, 2),
        )
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2))


def resnet() -> nn.Module:
    return ResNet9(1, 3, width=2)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


class Frame(nn.Module):
    """Two layers that keep one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
        self.b.running_mean = self.a.running_mean

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def names(layout: Layout, mask: Tensor) -> set[str]:
    """The slots that a mask takes; it must take each whole or not at all."""
    taken = {s.name: mask[s.start : s.stop] for s in layout.slots}
    assert all(part.all() or not part.any() for part in taken.values())
    return {name for name, part in taken.items() if part.any()}


@pytest.mark.parametrize("build", [odd_names, mlp, resnet])
def test_every_float_tensor_has_exactly_one_slot(build):
    module = build()
    layout = layout_of(module)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    floats = {name: t.shape for name, t in tensors.items() if t.is_floating_point()}
    assert {s.name: s.shape for s in layout.slots} == floats
    assert len(layout.slots) == len(floats)
    ends = [0, *(s.stop for s in layout.slots)]
    assert [s.start for s in layout.slots] == ends[:-1]
    assert all(s.stop - s.start == s.shape.numel() for s in layout.slots)
    assert layout.size == ends[-1] == sum(shape.numel() for shape in floats.values())


@pytest.mark.parametrize("build", [odd_names, mlp, resnet])
def test_trained_tensors_come_first(build):
    module = build()
    layout = layout_of(module)
    assert layout.trained == sum(p.numel() for p in module.parameters())
    assert all(s.trained == (s.stop <= layout.trained) for s in layout.slots)


def test_norms_are_found_by_type():
    layout = layout_of(odd_names())
    assert names(layout, layout.norm) == {
        *("zebra.weight", "zebra.bias", "zebra.running_mean", "zebra.running_var"),
        *("deep.x.weight", "deep.x.bias", "deep.y.running_mean", "deep.y.running_var", "z.weight", "z.bias"),
    }
    assert layout.norm.sum() == 4 * 3 + 4 * 4 + 2 * 5


@pytest.mark.parametrize("norm", [nn.GroupNorm(1, 4), nn.LayerNorm(4), nn.RMSNorm(4)])
def test_a_norm_without_statistics_is_one_too(norm: nn.Module):
    layout = layout_of(nn.Sequential(nn.Linear(2, 4), norm))
    assert layout.norm.sum() == sum(p.numel() for p in norm.parameters()) > 0


def test_resnet9_has_four_norm_tensors_for_each_of_its_eight_norms():
    layout = layout_of(ResNet9(3, 10, width=2))
    assert len(names(layout, layout.norm)) == 4 * 8
    assert layout.norm.sum() == 4 * 2 * (1 + 2 + 2 + 2 + 4 + 8 + 8 + 8)


def test_a_network_without_norms_has_an_empty_mask():
    layout = layout_of(mlp())
    assert layout.norm.shape == (4 * 3 + 3 + 3 * 2 + 2,)
    assert not layout.norm.any()
    assert layout.trained == layout.size == 23


def test_the_head_is_the_last_layers():
    resnet = layout_of(ResNet9(1, 10, width=2))
    assert names(resnet, resnet.head()) == {"head.weight", "head.bias"}
    assert names(resnet, resnet.head(2)) == {"head.weight", "head.bias", "hidden.weight", "hidden.bias"}
    small = layout_of(mlp())
    assert small.head(1).nonzero().flatten().tolist() == list(range(15, 23))
    assert small.head(2).all()


def test_heads_count_convolutions_and_leave_norms_out():
    layout = layout_of(odd_names())
    assert names(layout, layout.head(3)) == {
        *("running_mean.weight", "running_mean.bias", "batchnorm.weight", "batchnorm.bias", "deep.bn.weight", "deep.bn.bias"),
    }
    assert torch.equal(layout.head(99), layout.head(4))
    assert not (layout.head(4) & layout.norm).any()


def test_what_a_weight_is_computed_from_belongs_to_its_layer():
    net = nn.Sequential(nn.Linear(4, 3), weight_norm(nn.Linear(3, 2)))
    layout = layout_of(net)
    weight = {f"1.parametrizations.weight.original{i}" for i in (0, 1)}
    assert names(layout, layout.head(1)) == {"1.bias", *weight}
    assert layout.bias
    assert layout.bias.name == "1.bias"
    normed = layout_of(nn.Sequential(nn.Linear(4, 3), weight_norm(nn.LayerNorm((2, 2)))))
    assert names(normed, normed.norm) == {"1.bias", *weight}
    assert layout_of(nn.Sequential(spectral_norm(nn.Linear(3, 2, bias=False)))).bias is None  # it has flat buffers


def test_a_network_without_layers_has_no_head():
    with pytest.raises(KithkinError, match="no linear or convolution layer"):
        layout_of(nn.Sequential(nn.BatchNorm1d(2))).head()


def test_a_shared_parameter_is_laid_out_once():
    assert [s.name for s in layout_of(Tied()).slots] == ["a.weight", "a.bias", "b.bias"]
    net = Network(Tied, CPU)
    net.load(torch.tensor([2.0, 0, 0, 3, 0, 0, 1, 1]))
    assert net.module(torch.tensor([[1.0, 1]])).tolist() == [[5, 10]]  # times 2 and 3, twice, plus 1
    net.module(torch.tensor([[1.0, 1]])).sum().backward()
    assert net.g.tolist() == [2 + 2, 2 + 3, 3 + 2, 3 + 3, 2, 3, 1, 1]  # through the first use, and through the second


def test_a_shared_buffer_stays_shared():
    net = Network(Frame, CPU)
    net.load(torch.arange(net.layout.size).float())
    assert torch.equal(net.module.b.running_mean, net.module.a.running_mean)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("build", [odd_names, mlp, resnet, Tied])
def test_a_loaded_vector_is_the_networks_state(build, bf16: bool):
    net = Network(build, CPU, bf16)
    vector = torch.randn(net.layout.size)
    net.load(vector)
    state = net.module.state_dict()
    for slot in net.layout.slots:
        assert torch.equal(state[slot.name], cut(vector, slot))
    assert torch.equal(read(net.module, net.layout), vector)
    saved = torch.zeros_like(vector)
    net.save(saved)
    assert torch.equal(saved, vector)


def test_a_new_network_is_what_was_built():
    built: list[nn.Module] = []

    def build() -> nn.Module:
        built.append(resnet())
        return built[-1]

    with torch.random.fork_rng():
        torch.manual_seed(1)
        expected = read(resnet(), layout_of(resnet()))
        torch.manual_seed(1)
        net = Network(build, CPU)
    saved = torch.empty_like(expected)
    net.save(saved)
    assert torch.equal(saved, expected)
    assert net.module is built[0]


def test_a_loaded_network_computes_what_the_plain_one_does():
    plain = resnet().eval()
    net = Network(resnet, CPU)
    net.module.eval()
    x = torch.rand(4, 1, 8, 8)
    net.load(read(plain, layout_of(plain)))
    assert torch.equal(net.module(x), plain(x))


def test_reading_copies():
    module = nn.Linear(1, 1)
    vector = read(module, layout_of(module))
    before = vector.clone()
    module.weight.data.add_(1)
    assert torch.equal(vector, before)


def test_gradients_fill_the_flat_one():
    plain, net = resnet(), Network(resnet, CPU)
    net.load(read(plain, net.layout))
    x = torch.rand(4, 1, 8, 8)
    for module in (plain, net.module):
        module(x).square().sum().backward()
    for mine, theirs in zip(net.views(net.g), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.grad, rtol=1e-4, atol=1e-5)  # other kernels: pictures lie channels-last
    assert net.g.count_nonzero() > 0


def test_gradients_add_up_until_they_are_zeroed():
    net = Network(lambda: nn.Linear(2, 1), CPU)
    for n in (1, 2):
        net.module(torch.tensor([[3.0, 5.0]])).sum().backward()
        assert net.g.tolist() == [3 * n, 5 * n, n]
    net.g.zero_()
    assert net.module.weight.grad.tolist() == [[0, 0]]


def test_running_statistics_land_in_the_vector():
    net = Network(lambda: nn.BatchNorm1d(2), CPU)
    assert [s.name for s in net.layout.slots] == ["weight", "bias", "running_mean", "running_var"]
    net.module.train()
    net.module(torch.tensor([[1.0, 10], [3, 10]]))  # mean 2 and 10, variance 2 and 0, momentum 0.1
    assert torch.allclose(net.w, torch.tensor([1, 1, 0, 0, 0.2, 1.0, 0.9 + 0.2, 0.9]))


def test_whole_number_buffers_stay_out():
    assert "num_batches_tracked" not in {s.name for s in layout_of(nn.BatchNorm1d(2)).slots}


def test_dropout_is_active_inside_throwing_alone():
    net = Network(mlp, CPU)
    x = torch.rand(6, 4)
    plain = net.module(x)
    with net.throwing(torch.arange(6)):
        assert not torch.equal(net.module(x), plain)
    assert torch.equal(net.module(x), plain)


def test_throwing_ends_with_an_error_too():
    net = Network(mlp, CPU)
    with pytest.raises(ZeroDivisionError), net.throwing(torch.arange(6)):
        raise ZeroDivisionError
    assert [drop.keys for drop in net.drops] == [None]


@pytest.mark.parametrize("build", [mlp, resnet])
def test_passes_are_separate_full_forwards(build):
    net = Network(build, CPU)
    net.module.eval()
    x = torch.rand(5, 4) if build is mlp else torch.rand(5, 1, 8, 8)
    keys = torch.arange(15).view(3, 5) * 7
    logits = net.passes(x, keys)
    for t in range(3):
        with net.throwing(keys[t]):
            assert torch.allclose(logits[t], net.module(x), atol=1e-6)
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)


def test_passes_that_drop_nothing_are_all_the_plain_answer():
    net = Network(lambda: ResNet9(1, 3, width=2, dropout=0.0), CPU)
    net.module.eval()
    x = torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(net.passes(x, torch.arange(15).view(3, 5)), net.module(x).expand(3, -1, -1))


def test_the_trunk_runs_once():
    net = Network(resnet, CPU)
    net.module.eval()
    seen: list[int] = []
    net.module.prepare.register_forward_hook(lambda m, x, y: seen.append(len(y)))
    net.passes(torch.rand(5, 1, 8, 8), torch.arange(15).view(3, 5))
    assert seen == [5]


class Halves(nn.Module):
    """A network whose layers happen to be called trunk and tail."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        self.tail = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.trunk(x))


def test_a_trunk_that_gives_one_tensor_will_do():
    net = Network(Halves, CPU)
    x, keys = torch.rand(5, 4), torch.arange(10).view(2, 5)
    with net.throwing(keys[1]):
        expected = net.module(x)
    assert torch.allclose(net.passes(x, keys)[1], expected, atol=1e-6)


def test_the_start_follows_from_the_seed_alone():
    first = initial_vector(resnet, 3)
    torch.rand(5)
    assert torch.equal(initial_vector(resnet, 3), first)
    torch.manual_seed(rng.key(3, "start"))
    assert torch.equal(read(resnet(), layout_of(resnet())), first), "whoever changes the address changes every run"
    assert not torch.equal(initial_vector(resnet, 4), first)
    assert first.shape == (layout_of(resnet()).size,)


def test_the_start_and_a_network_leave_torchs_generator_alone():
    before = torch.random.get_rng_state()
    initial_vector(mlp, 0)
    Network(mlp, CPU)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_network_lays_out_as_its_start_does():
    """Replacing dropouts neither moves nor adds a tensor."""
    plain, replaced = mlp(), mlp()
    dropouts(replaced)
    assert layout_of(replaced) == layout_of(plain) == Network(mlp, CPU).layout
