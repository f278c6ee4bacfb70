"""Keyed dropout: the mask is a function of the key."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kithkin import dice
from kithkin.errors import KithkinError
from kithkin.nets import Dropout, dropouts


def keyed(p: float, keys: torch.Tensor, salt: int = 0, channels: bool = False) -> Dropout:
    drop = Dropout(p, channels)
    drop.keys, drop.salt = keys, salt
    return drop


def test_without_keys_it_passes_through_in_train_and_eval():
    x = torch.randn(4, 6)
    assert torch.equal(Dropout(0.5).train()(x), x)
    assert torch.equal(Dropout(0.5).eval()(x), x)


def test_with_keys_it_drops_in_eval_too():
    x = torch.ones(4, 60)
    drop = keyed(0.5, torch.arange(4))
    assert torch.equal(drop.train()(x), drop.eval()(x))
    assert (drop(x) == 0).any()


@pytest.mark.parametrize(("p", "least"), [(0.5, 128), (0.25, 64), (0.1, 26)])
def test_a_byte_below_p_drops_and_the_rest_is_scaled(p: float, least: int):
    keys = torch.tensor([3, 8, 5])
    kept = dice.bytes_(keys ^ 99, 2 * 3 * 4).view(3, 2, 3, 4) >= least
    x = torch.randn(3, 2, 3, 4)
    assert torch.equal(keyed(p, keys, salt=99)(x), torch.where(kept, x * (256 / (256 - least)), 0.0))


@pytest.mark.parametrize("p", [0.5, 0.25, 0.1])
def test_it_keeps_1_minus_p_and_the_mean(p: float):
    y = keyed(p, torch.arange(200))(torch.ones(200, 500))
    assert (y > 0).float().mean().item() == pytest.approx(1 - p, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.02)


def test_p_0_drops_nothing():
    x = torch.randn(4, 6)
    assert torch.equal(keyed(0, torch.arange(4))(x), x)


def test_permuting_rows_with_their_keys_permutes_the_answer():
    x, keys, order = torch.randn(5, 7), torch.tensor([9, 2, 4, 2, 0]), torch.tensor([3, 1, 4, 0, 2])
    whole = keyed(0.5, keys)(x)
    assert torch.equal(keyed(0.5, keys[order])(x[order]), whole[order])
    assert torch.equal(keyed(0.5, keys[1:2])(x[1:2]), whole[1:2])  # nor does it matter who else is in the batch


def test_equal_keys_have_equal_masks_and_others_differ():
    mask = keyed(0.5, torch.tensor([7, 7, 8]))(torch.ones(3, 64))
    assert torch.equal(mask[0], mask[1])
    assert not torch.equal(mask[0], mask[2])


def test_the_salt_tells_layers_apart():
    x, keys = torch.ones(1, 64), torch.tensor([7])
    assert not torch.equal(keyed(0.5, keys, salt=1)(x), keyed(0.5, keys, salt=2)(x))


def test_by_channel_whole_channels_drop():
    keys = torch.arange(3)
    y = keyed(0.5, keys, channels=True)(torch.ones(3, 16, 2, 2))
    channel = dice.bytes_(keys, 16) >= 128
    assert torch.equal(y, (channel * 2.0)[:, :, None, None].expand(3, 16, 2, 2))


def test_gradients_pass_where_it_keeps():
    x = torch.ones(2, 32, requires_grad=True)
    y = keyed(0.5, torch.arange(2))(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # of ones: 2 where kept, 0 where not


def test_every_dropout_layer_is_replaced_by_type():
    net = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Dropout1d(0.2), nn.Dropout2d(0.3)), nn.Dropout3d(0.4), Dropout(0.6))
    found = dropouts(net)
    assert [(d.p, d.channels) for d in found] == [(0.1, False), (0.2, True), (0.3, True), (0.4, True), (0.6, False)]
    assert [m for m in net.modules() if "Dropout" in type(m).__name__] == found
    assert len({d.salt for d in found}) == 5


def test_salts_belong_to_the_place_in_the_network():
    def build() -> nn.Module:
        return nn.Sequential(nn.Dropout(), nn.Linear(2, 2), nn.Dropout())

    assert [d.salt for d in dropouts(build())] == [d.salt for d in dropouts(build())]
    net = build()
    assert dropouts(net) == dropouts(net)  # a second look changes nothing


def test_a_layer_used_twice_is_replaced_in_both_places():
    drop = nn.Dropout(0.5)
    net = nn.Sequential(nn.Linear(2, 2), drop, nn.Linear(2, 2), drop)
    dropouts(net)
    assert not [m for m in net if isinstance(m, nn.Dropout)]


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_is_refused_by_name(kind: type[nn.Module]):
    with pytest.raises(KithkinError, match=rf"{kind.__name__} layer \('odd'\).*Use nn.Dropout"):
        dropouts(nn.Sequential(nn.Sequential().append(nn.Linear(1, 1)), nn.ModuleDict({"odd": kind()})))
