"""Nets on strips of images. One file, so that one world imports PyTorch, once."""

from __future__ import annotations

import re
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from support import stripped, torched
from support.patience import DEADLINE
from support.processes import until
from support.raised import raises
from support.spmd import doing, total

from workbench import run_on_ranks, spmd

EXACT = 1e-10
SIZES = pytest.mark.parametrize("size", [1, 2, 4])


def on_parts(client, size, function, *args, device="cpu"):
    """Return what a function returned on parts of this many ranks."""
    return run_on_ranks(torched.of_part, size, function, *args, device=device, client=client, timeout=8 * DEADLINE)


@pytest.mark.mpi_flavor
@pytest.mark.parametrize(
    ("size", "seeds"),
    [
        (1, range(8)),
        (2, range(100, 115)),
        (4, range(200, 225)),
        pytest.param(2, range(1_000, 1_300), marks=pytest.mark.long),
        pytest.param(4, range(2_000, 2_400), marks=pytest.mark.long),
    ],
)
def test_random_nets_on_strips_have_the_results_and_gradients_of_one_process(client4, size, seeds, device):
    for of_rank in on_parts(client4, size, stripped.random_nets, list(seeds), device=device):
        assert [net for apart, net in of_rank if not apart <= EXACT] == []


@SIZES
def test_functions_of_strips_have_the_results_and_gradients_of_whole_images(client4, size, device):
    for of_rank in on_parts(client4, size, stripped.compared_functions, device=device):
        assert {name: apart for name, apart in of_rank.items() if not apart <= EXACT} == {}


@SIZES
def test_nets_in_autocast_have_the_types_of_one_process_and_its_results_except_for_rounding(client4, size, device):
    for of_rank in on_parts(client4, size, stripped.in_half, device=device):
        for apart, types in of_rank.values():
            assert types == ["torch.bfloat16", "torch.bfloat16", "torch.float32"]
            assert apart < 0.05


def test_layers_of_small_images_have_the_results_and_gradients_of_whole_images(client4):
    for of_rank in run_on_ranks(stripped.compared_small, client=client4):
        assert {name: apart for name, apart in of_rank.items() if not apart <= EXACT} == {}


def test_a_result_that_is_changed_in_place_leaves_the_input_as_it_is(client4):
    assert run_on_ranks(stripped.changed_in_place, client=client4) == [True] * 4


@SIZES
@pytest.mark.parametrize("image", [16, 20])
def test_a_unet_on_strips_has_the_losses_of_one_process(client4, size, image, device):
    for many, one in on_parts(client4, size, stripped.losses, image, 2, device=device):
        assert many == pytest.approx(one, abs=EXACT)
        assert one[-1] < one[0]


def test_activations_that_are_computed_again_change_no_loss(client4):
    for many, one in run_on_ranks(stripped.losses, 20, 2, checkpointed=True, client=client4):
        assert many == pytest.approx(one, abs=EXACT)


@pytest.mark.mpi_flavor
def test_replicas_of_nets_on_strips_train_with_ddp(client4):
    assert max(run_on_ranks(stripped.replicas, client=client4)) <= EXACT


def test_ranks_may_pass_other_rows_than_theirs(client4):
    assert max(run_on_ranks(stripped.in_other_parts, client=client4)) <= EXACT


def test_a_dropout_of_channels_drops_them_on_all_ranks(client4, device):
    found = on_parts(client4, 4, stripped.dropped_channels, device=device)
    assert all(channels == found[0][0] for channels, _ in found)
    assert {tuple(values) for _, values in found} == {(0.0, 2.0)}


def test_ranks_draw_different_random_numbers_and_the_same_for_whole_tensors(client4, device):
    found = on_parts(client4, 4, stripped.random_numbers, device=device)
    for of_ranks in zip(*(rows for rows, _ in found), strict=True):
        assert len({tuple(rows) for rows in of_ranks}) == 4
    assert [whole for _, whole in found] == [found[0][1]] * 4


def test_a_dropout_in_evaluation_draws_no_random_numbers(client4):
    assert run_on_ranks(stripped.evaluated_dropout, client=client4) == [True] * 4


def test_frozen_weights_and_evaluation_have_no_gradients(client4):
    assert run_on_ranks(stripped.without_gradients, client=client4) == [(True, True, True)] * 4


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Flatten", "flatten .* the function has no rule for strips. Replace the layer by one that can be split"),
        ("Linear", "linear .* the function has no rule"),
        ("LayerNorm", "layer_norm .* the function has no rule"),
        ("MaxPool2d", "max_pool2d_with_indices .* its indices are those of the whole image. Use it without"),
        ("Upsample", "interpolate .* mode='bicubic' has no rule. Use nearest, "),
        ("Conv2d", "pad .* mode='circular' of 1 and 1 rows has no rule. Use mode 'constant'"),
        ("AvgPool2d", "avg_pool2d .* the image has 11 rows, fewer than the layer needs. Pass a larger image"),
        ("Softmax", "softmax .* the function works along axis 2, which is divided among the ranks"),
        ("Unfold", "unfold .* the function has no rule"),
    ],
)
def test_a_layer_that_cannot_be_split_is_refused_by_its_name(client4, kind, said):
    for words in run_on_ranks(stripped.refused, kind, client=client4):
        assert re.search(said, words)
        assert f"InvalidRequest: {said.partition(' ')[0]} in layer '1.0' ({kind}) cannot be computed on strips" in words


def test_tensors_that_do_not_fit_a_strip_are_refused(client4):
    shape, tensor, heights, index, rows = run_on_ranks(stripped.refused_values, client=client4)[3]
    assert "a tensor of shape (3, 3) has no rows. Pass images of shape (batch, channels, rows, ...)" in shape
    assert "a tensor of shape (7, 6) has neither the 11 rows of the image nor the 3 of this rank" in tensor
    assert "do not have the same rows. Resize the images to the same height first" in heights
    assert "an index of a strip consists of numbers and slices, with ':' for the rows" in index
    assert "the function works along axis 2" in rows


def works(client):
    return run_on_ranks(total, client=client, timeout=DEADLINE) == [6] * 4


def test_a_rank_that_raises_in_backward_ends_the_training_and_the_next_call_works(client4, tmp_path):
    with raises(ValueError) as caught:
        run_on_ranks(stripped.train_until, "raises", 2, str(tmp_path / "step"), client=client4, timeout=2 * DEADLINE)
    assert caught.value.args[0] == "a bad gradient"
    assert time.time() - caught.value.args[1] < DEADLINE
    assert "raised on rank 2" in caught.value.__notes__[0]
    assert works(client4)


@pytest.mark.mpi_flavor
def test_a_training_that_is_cancelled_ends_on_all_ranks(client4, tmp_path):
    step = tmp_path / "step"
    call = spmd(stripped.train_until, client=client4).submit("goes on", None, str(step))
    until("all ranks in it", lambda: all(Path(f"{step}.{rank}").exists() for rank in range(4)))
    assert call.cancel()
    with pytest.raises(CancelledError):
        call.result(DEADLINE)
    until("all ranks to be back", lambda: all(what == "" for _, what in client4.run(doing).values()))
    assert works(client4)
