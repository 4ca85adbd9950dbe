"""Models that are divided among ranks: FSDP, tensor parallelism and their checkpoints."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from support import divided, torched
from support.patience import DEADLINE
from support.raised import raises

from workbench import run_on_ranks
from workbench.errors import InvalidRequest
from workbench.torch import load_sharded


@pytest.mark.parametrize("way", ["fsdp", "tp", pytest.param("both", marks=pytest.mark.mpi_flavor)])
def test_a_divided_model_has_the_losses_of_ddp_and_a_quarter_of_its_bytes_on_each_rank(client4, way, device):
    def trained(way):
        options = {"device": device, "client": client4, "timeout": 4 * DEADLINE}
        return run_on_ranks(torched.of_part, 4, divided.trained, way, **options)

    [(expected, of_ddp), *_] = trained("ddp")
    for losses, of_rank in trained(way):
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        np.testing.assert_allclose(of_rank, np.divide(of_ddp, 4), rtol=0.1)


def test_no_rank_has_the_whole_model_while_it_is_made(client4):
    for of_rank, of_all in run_on_ranks(divided.peaks, client=client4):
        assert of_all > 40 * 2**20  # of 64, a part in memory that the process has kept
        assert of_rank < 0.7 * of_all  # a quarter, as much in holes of the allocator, and one module


def test_a_weight_that_layers_share_is_divided_and_remains_one(client4):
    torch.manual_seed(3)
    expected = torch.nn.Embedding(5, 3).weight.detach().numpy()
    for first, shared, change in run_on_ranks(divided.tied, client=client4):
        np.testing.assert_array_equal(first, expected)
        assert shared == [True, True]
        assert change > 0.05  # of both uses, by the first step of Adam


@pytest.mark.parametrize(("way", "ways"), [("fsdp", ("fsdp", "fsdp")), ("both", ("tp", "ddp"))], ids=["fsdp", "both"])
def test_weights_divided_among_four_ranks_are_loaded_by_two_by_one_and_here(client4, tmp_path, way, ways, device):
    def trained(ranks, how, folder, steps):
        call = torched.of_part, 4, divided.continued, ranks, how, tmp_path / folder, steps
        return run_on_ranks(*call, device=device, client=client4)[0]

    _, straight = trained(4, way, "straight", 5)
    assert trained(4, way, "run", 3) == ({"steps": 0}, pytest.approx(straight[:3], rel=1e-6))
    assert trained(2, ways[0], "run", 1) == ({"steps": 3}, pytest.approx(straight[3:4], rel=1e-5))
    assert trained(1, ways[1], "run", 1) == ({"steps": 4}, pytest.approx(straight[4:], rel=1e-5))
    here, there = divided.net(), divided.net()
    assert load_sharded(tmp_path / "run", here) == load_sharded(tmp_path / "straight", there) == {"steps": 5}
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_rank_that_cannot_write_ends_the_save_on_all_ranks_and_the_former_checkpoint_is_loaded(client4, tmp_path):
    def trained(fails=None):
        function = partial(divided.continued, fails=fails)
        return run_on_ranks(function, 4, "fsdp", tmp_path / "run", 1, client=client4)[0]

    trained()
    for rank in (1, 0):
        with pytest.raises(InvalidRequest):
            trained(rank)
    assert trained()[0] == {"steps": 1}
    assert len([*(tmp_path / "run").iterdir()]) == 2


@pytest.mark.parametrize("rank", [0, 3])
def test_a_file_that_has_changed_ends_the_load_on_all_ranks(client4, tmp_path, rank):
    def trained():
        return run_on_ranks(divided.continued, 4, "fsdp", tmp_path, 1, client=client4)[0]

    trained()
    [file] = tmp_path.glob(f"*/__{rank}_0.distcp")
    with file.open("r+b") as content:
        content.seek(100)
        content.write(b"changed")
    with raises(InvalidRequest, given=f"__{rank}_0.distcp"):
        trained()
