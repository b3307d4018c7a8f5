"""Whether a defended message still holds the undefended one."""

from __future__ import annotations

import torch
from fedglass.audit.remains import WHOLE, remains

from fedglass.core.rng import stream


def message(tensors: int = 8, size: int = 4000) -> dict[str, torch.Tensor]:
    return {str(i): torch.randn(size, generator=stream(i, "bare")) for i in range(tensors)}


def noised(bare: dict[str, torch.Tensor], **std: float) -> dict[str, torch.Tensor]:
    return {
        name: t + std.get(f"t{name}", std["rest"]) * torch.randn(t.shape, generator=stream(0, "noise", name))
        for name, t in bare.items()
    }


def test_noise_that_is_heavy_everywhere_leaves_nothing() -> None:
    bare = message()
    assert remains(noised(bare, rest=1e4), bare) == ()


def test_one_tensor_that_was_left_out_is_named() -> None:
    bare = message()
    assert remains(noised(bare, rest=1e4, t3=0.0), bare) == ("3",)
    assert remains(noised(bare, rest=1e4, t3=1.0), bare) == ("3",)


def test_what_no_tensor_shows_alone_shows_together() -> None:
    bare = message(tensors=16)
    assert remains(noised(bare, rest=30.0), bare) == (WHOLE,)


def test_scaling_and_clipping_hide_nothing() -> None:
    bare = message(tensors=1)
    assert remains({"0": 1e-9 * bare["0"]}, bare) == ("0",)


def test_few_entries_are_alike_by_chance() -> None:
    """Two entries of pure noise lie within a degree of any direction in one draw of a hundred."""
    bare = {str(i): torch.ones(2) for i in range(200)}
    assert remains({name: torch.randn(2, generator=stream(0, "few", name)) for name in bare}, bare) == ()
    assert remains({"0": torch.ones(1)}, {"0": torch.ones(1)}) == ()


def test_a_tensor_that_no_training_moves_tells_nothing() -> None:
    assert remains({"0": torch.ones(50)}, {"0": torch.zeros(50)}) == ()


def test_what_no_round_shows_many_rounds_show() -> None:
    bare = message(tensors=2)
    rounds = [
        ({name: t + 60 * torch.randn(t.shape, generator=stream(i, "round", name)) for name, t in bare.items()}, bare)
        for i in range(100)
    ]
    assert all(remains(*each) == () for each in rounds)
    assert remains(*rounds[0], *rounds[1:]) == ("0", "1")


def test_a_tensor_that_was_left_out_of_a_later_round_is_named() -> None:
    bare = message()
    assert remains(noised(bare, rest=1e4), bare, (noised(bare, rest=1e4, t3=0.0), bare)) == ("3",)


def test_rounds_that_move_different_layers_are_looked_at_where_both_do() -> None:
    bare = message()
    fewer = {name: tensor for name, tensor in bare.items() if name != "3"}
    assert remains(noised(bare, rest=1e4), bare, (noised(fewer, rest=1e4), fewer)) == ()
    assert remains(noised(fewer, rest=1e4), fewer, (noised(bare, rest=1e4, t3=0.0), bare)) == ("3",)
