"""Pipelines of stages on the ranks. One file, so that one world imports PyTorch, once."""

from __future__ import annotations

import re
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from support import pipelined, torched
from support.patience import DEADLINE
from support.processes import until
from support.raised import raises
from support.spmd import doing

from benchmarks import hybrid
from benchmarks.layouts import Arm, Net
from workbench import run_on_ranks, spmd
from workbench.errors import InvalidRequest


def on_parts(client, size, function, *args, device="cpu"):
    """Return what a function returned on parts of this many ranks."""
    return run_on_ranks(torched.of_part, size, function, *args, device=device, client=client, timeout=4 * DEADLINE)


@pytest.mark.parametrize(
    "kind", ["resnet", pytest.param("transformer", marks=pytest.mark.mpi_flavor), "in place", "channels last", "sparse"]
)
@pytest.mark.parametrize("size", [2, 4])
def test_losses_and_weights_of_every_layout_and_schedule_are_those_of_one_process(client4, size, kind, device):
    found = on_parts(client4, size, pipelined.compared, kind, device=device)

    assert set(found[0]) == set(pipelined.layouts(size))
    for layouts in found:
        assert max(apart for apart, _ in layouts.values()) < 1e-10
        assert all(len(firsts) == stages for (stages, _), (_, firsts) in layouts.items())


def test_a_net_on_the_meta_device_is_never_whole_on_a_rank_and_trains_the_same_in_every_layout(client4):
    ranks = run_on_ranks(pipelined.on_meta, client=client4, timeout=4 * DEADLINE)
    for layouts in ranks:
        first, *others = (losses for losses, _, _ in layouts.values())
        assert all(losses == pytest.approx(first, abs=1e-10) for losses in others)
        assert all(held == real for _, held, real in layouts.values())
    whole = ranks[0][1][1]
    for stages in (1, 2, 4):
        # Each replica has the weights of the module one time.
        assert sum(layouts[stages][1] for layouts in ranks) == whole * 4 / stages


def test_a_state_is_loaded_and_the_loss_without_gradients_is_that_of_the_module(client4):
    for expected, after, again, said in run_on_ranks(pipelined.restored, client=client4, timeout=2 * DEADLINE):
        assert again == pytest.approx(expected, abs=1e-12) != pytest.approx(after, abs=1e-6)
        assert re.search(r"the state has no .*weight.*\. Pass the state of the whole module", said)


def test_the_loss_without_gradients_is_that_of_a_module_with_the_state_in_every_layout(client4):
    for layouts in run_on_ranks(pipelined.evaluated, client=client4, timeout=4 * DEADLINE):
        assert {layout: loss for layout, (loss, _) in layouts.items()} == pytest.approx(
            {layout: loss for layout, (_, loss) in layouts.items()}, abs=1e-12
        )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("stages", "stages=3 is not valid for 4 ranks: stages times replicas must be the number of ranks"),
        ("replicas", "stages=2, replicas=1 is not valid for 4 ranks"),
        ("schedule", "schedule '1f1' is not valid. Did you mean '1f1b'"),
        (
            "microbatches",
            r"microbatches 2 is not valid\. Choose a multiple of the number of copies .* \(1\), at least 4",
        ),
        ("size", r"size 16 is not valid\. Choose a multiple of the number of ranks \(4\) and of .* microbatches \(5\)"),
        ("layers", "stages=4 is not valid: the module can be cut into 2 stages at most. Choose fewer stages"),
        ("branches", "Branches.forward cannot be cut .* torch.fx does not trace the code: .* into a submodule"),
        ("skips", "stages=4 is not valid: the module can be cut into 3 stages at most"),
        ("dropout", "Drops.forward depends on self.training, .* Use the submodule of torch.nn"),
        ("tied", "at most. .* (words.weight is a weight of words and scores)".replace("(", r"\(").replace(")", r"\)")),
        ("fixed", "the layer 1 fails on a microbatch of 2 rows: .* The module must accept any number of rows"),
        ("meta", r"module 1 \(Linear\) is on the meta device and has .weight., but no method reset_parameters"),
        ("rows", "rank . passes 16 rows and 16 labels, and its part of a batch of 16 rows has 4. Use batches"),
        (
            "shape",
            r"rows of shape \(3, 4, 4\) are not valid\. Pass rows of shape \(3, 8, 8\), the shape of the rows",
        ),
        ("outside", r"torch.distributed is not initialized\. Call pipeline\(\) in a distributed\(comm\) block"),
    ],
)
def test_a_module_that_cannot_be_cut_is_refused_in_a_sentence_on_all_ranks(client4, what, said):
    for words in run_on_ranks(pipelined.refused, what, client=client4, timeout=2 * DEADLINE):
        assert re.search(f"^InvalidRequest: .*{said}", words, re.DOTALL)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("step", r"stage 0 returned torch.bfloat16 .*, and stage 1 expects torch.float32 .* same torch.autocast\(\)"),
        ("evaluate", "stage 0 returned torch.float32 .*, and stage 1 expects torch.bfloat16 "),
    ],
)
def test_a_pipeline_in_another_precision_than_it_was_made_in_is_refused(client4, way, said):
    with pytest.raises(InvalidRequest, match=said):
        run_on_ranks(pipelined.in_other_precision, way, client=client4, timeout=2 * DEADLINE)


def test_a_pipeline_that_was_made_in_half_precision_trains_in_it(client4, device):
    for losses, expected in on_parts(client4, 4, pipelined.in_half, device=device):
        assert losses == pytest.approx(expected, rel=1e-2)


def trains(client):
    losses = run_on_ranks(torched.ddp, "float64", 2, client=client, timeout=2 * DEADLINE)[0]
    return losses[0] == pytest.approx(losses[1], abs=1e-12)


@pytest.mark.parametrize("schedule", [pytest.param("1f1b", marks=pytest.mark.mpi_flavor), "bidirectional"])
def test_a_stage_that_raises_in_backward_ends_the_training_and_the_next_call_trains(client4, tmp_path, schedule):
    with raises(ValueError) as caught:
        run_on_ranks(
            pipelined.train_until, "raises", 2, str(tmp_path / "step"), schedule, client=client4, timeout=2 * DEADLINE
        )
    assert caught.value.args[0] == "a bad layer"
    assert time.time() - caught.value.args[1] < DEADLINE
    assert "raised on rank 2" in caught.value.__notes__[0]
    assert trains(client4)


def test_what_the_loss_raises_comes_as_it_is(client4):
    with raises(ZeroDivisionError, args=("a bad loss",)) as caught:
        run_on_ranks(pipelined.raises_forward, client=client4, timeout=2 * DEADLINE)
    assert "raised on rank 3" in caught.value.__notes__[0]


@pytest.mark.mpi_flavor
def test_a_training_that_is_cancelled_ends_on_all_ranks_and_the_next_call_trains(client4, tmp_path):
    step = tmp_path / "step"
    call = spmd(pipelined.train_until, client=client4).submit("raises", None, str(step))
    until("all ranks in it", lambda: all(Path(f"{step}.{rank}").exists() for rank in range(4)))
    assert call.cancel()
    with pytest.raises(CancelledError):
        call.result(DEADLINE)
    until("all ranks to be back", lambda: all(what == "" for _, what in client4.run(doing).values()))
    assert trains(client4)


def test_the_layouts_of_the_bench_have_the_losses_of_one_process(client4, monkeypatch):
    monkeypatch.setattr(hybrid, "arms", lambda _: [Arm(0), Arm(4), Arm(2, "bidirectional")])
    bench = hybrid.Bench(client4, 4, Net(11, 2, 8, 16, 8))
    apart = bench.check()
    # The kernel counts pages in batches, so the net for the memory takes some MB.
    rows = [*bench.measure(1, 1), hybrid.Bench(client4, 4, Net(11, 8, 32, 64, 8)).memory(Arm(4))]

    assert apart["float64_apart"] <= 1e-10
    assert apart["float32_apart"] <= 1e-5
    assert sorted(row["arm"] for row in rows if row["measure"] == "ms") == ["2x2_bidirectional", "4x1", "one"]
    assert [(row["arm"], row["measure"]) for row in rows[-1:]] == [("4x1", "MB")]
    assert min(row["value"] for row in rows) > 0
