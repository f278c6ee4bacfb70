"""ResNet-9: shapes, and where its dropouts sit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kithkin.nets import Dropout, ResNet9, dropouts
from kithkin.nets.resnet9 import ConvNormRelu


@pytest.mark.parametrize("size", [8, 9, 16, 28, 32, 64])
@pytest.mark.parametrize(("channels", "classes", "width"), [(1, 10, 2), (3, 9, 4)])
def test_any_picture_gives_one_logit_a_class(size: int, channels: int, classes: int, width: int):
    net = ResNet9(channels, classes, width)
    x = torch.rand(2, channels, size, size)
    for mode in (net.train(), net.eval()):
        assert mode(x).shape == (2, classes)
        assert mode(x).isfinite().all()


def test_width_64_has_the_papers_channels():
    net = ResNet9(3, 10)
    channels = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert sorted(channels) == sorted([64, 128, 128, 128, 256, 512, 512, 512])
    assert [(m.in_features, m.out_features) for m in net.modules() if isinstance(m, nn.Linear)] == [(512, 256), (256, 10)]


def test_the_answer_is_that_of_pages_layers():
    net = ResNet9(3, 5, 2).eval()
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)

    def block(x: Tensor, part: nn.Module, pool: bool = False) -> Tensor:
        conv, norm = part
        x = functional.conv2d(x, conv.weight, padding=1)
        x = functional.relu(functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias))
        return functional.max_pool2d(x, 2) if pool else x

    pictures = torch.rand(4, 3, 16, 16)
    x = block(block(pictures, net.prepare), net.widen[0], pool=True)
    x = x + block(block(x, net.middle[0]), net.middle[1])
    x = block(block(x, net.widen[1], pool=True), net.widen[2], pool=True)
    x = (x + block(block(x, net.last[0]), net.last[1])).amax((2, 3))
    torch.testing.assert_close(net(pictures), net.head(functional.relu(net.hidden(x))))


def test_forward_is_tail_after_trunk():
    net = ResNet9(1, 5, 2).eval()
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(net(x), net.tail(*net.trunk(x)))


def test_pooling_before_relu_gives_the_numbers_and_gradients_of_relu_before_pooling():
    block = ConvNormRelu(2, 3, pool=True)
    conv, norm = block.parts
    x = torch.randn(4, 2, 9, 8, requires_grad=True)
    ours, textbook = block(x), functional.max_pool2d(functional.relu(norm(conv(x))), 2)
    assert torch.equal(ours, textbook)
    assert ours.min() == 0
    gradients = [torch.autograd.grad(y.pow(2).sum(), [x, *block.parameters()]) for y in (ours, textbook)]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_three_dropouts_sit_after_the_last_two_norms_and_the_hidden_layer():
    net = ResNet9(1, 5, 2, dropout=0.25).eval()
    calls: list[str] = []
    kinds = (nn.BatchNorm2d, nn.Conv2d, nn.Linear, Dropout)
    for module in net.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(lambda m, _, __: calls.append(type(m).__name__))
    net(torch.rand(1, 1, 8, 8))
    conv_norm = ["Conv2d", "BatchNorm2d"]
    assert calls == conv_norm * 7 + ["Dropout", *conv_norm, "Dropout", "Linear", "Dropout", "Linear"]
    assert [m.p for m in net.modules() if isinstance(m, Dropout)] == [0.25] * 3
    assert [m.p for m in ResNet9(1, 5).modules() if isinstance(m, Dropout)] == [0.5] * 3


def test_the_hidden_layer_sees_the_largest_of_every_channel_of_the_last_sum():
    net = ResNet9(1, 3, width=2).eval()
    seen: list[torch.Tensor] = []
    net.hidden.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    x, z = net.trunk(torch.rand(2, 1, 16, 16))
    net.tail(x, z)
    torch.testing.assert_close(seen[0], (x + net.last[1](z)).amax((2, 3)))


def test_no_dropout_sits_in_the_trunk():
    net = ResNet9(1, 5, 2)
    for module in net.modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(lambda *_: pytest.fail("dropout in the trunk"))
    net.trunk(torch.rand(2, 1, 8, 8))


def test_the_dropped_layers_differ_in_their_masks():
    assert len({drop.salt for drop in dropouts(ResNet9(1, 5, 2))}) == 3
