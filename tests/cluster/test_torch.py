"""PyTorch on the ranks. One file, so that one world imports PyTorch, once."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import CancelledError
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support import torched
from support.patience import DEADLINE, FACTOR
from support.processes import until
from support.raised import raises
from support.spmd import doing, total

from benchmarks import nets, parameter_server
from benchmarks.training import Bench
from workbench import place, run_on_ranks, spmd
from workbench.errors import InvalidRequest
from workbench.torch import fit, predict

# What the libraries of MPI can do differently: collectives, messages, groups, and the end of a call that is inside MPI.
ON_EVERY_MPI = pytest.mark.mpi_flavor

# Of the failures and interrupts of trainings; and seconds within which all ranks are back from one: two in
# `make test-long`, where nothing else runs.
CYCLES = int(os.environ.get("WORKBENCH_CYCLES", "2"))
BACK_WITHIN = 2 * FACTOR if "WORKBENCH_CYCLES" in os.environ else DEADLINE
SIZES = pytest.mark.parametrize("size", [1, 2, 4])


def on_parts(client, size, function, *args, device="cpu"):
    """Return what a function returned on parts of this many ranks."""
    return run_on_ranks(torched.of_part, size, function, *args, device=device, client=client, timeout=4 * DEADLINE)


def works(client):
    return run_on_ranks(total, client=client, timeout=DEADLINE) == [6] * 4


@ON_EVERY_MPI
@SIZES
@pytest.mark.parametrize("dtype", torched.DTYPES)
def test_every_collective_of_torch_does_what_numpy_does(client4, size, dtype, device):
    assert len({tuple(names) for names in on_parts(client4, size, torched.reductions, dtype, device=device)}) == 1
    on_parts(client4, size, torched.collectives, dtype, device=device)


# Not on the CPU, where there are no pieces: after such sizes malloc keeps more memory, which other tests measure.
@pytest.mark.gpu
def test_large_tensors_of_a_gpu_are_reduced_by_pieces(client4):
    on_parts(client4, 4, torched.large, device="cuda")


@ON_EVERY_MPI
@SIZES
def test_messages_objects_groups_and_coalesced_calls_work(client4, size, device):
    versions = on_parts(client4, size, torched.others, device=device)
    assert len(set(versions)) == 1


@SIZES
@pytest.mark.parametrize(("dtype", "apart"), [("float64", 1e-12), ("float32", 1e-5)])
def test_losses_of_data_parallel_training_are_those_of_one_process(client4, size, dtype, apart, device):
    for many, one in on_parts(client4, size, torched.ddp, dtype, device=device):
        np.testing.assert_allclose(many, one, atol=apart, rtol=0)
        assert one[-1] < one[0] / 2


@ON_EVERY_MPI
def test_two_models_train_in_one_step_in_groups_of_their_own(client4):
    for many, one in run_on_ranks(torched.two_models, client=client4):
        np.testing.assert_allclose(many, one, atol=1e-12, rtol=0)


@ON_EVERY_MPI
def test_a_training_listens_at_no_port(client4):
    for before, within in run_on_ranks(torched.listening, client=client4):
        assert before == within


def test_the_arms_of_the_training_bench_have_the_same_losses_and_only_gloo_listens(client4):
    bench = Bench(client4, 0.001, ["small", "feeding", "streaming"])
    listening = bench.check()
    rows = list(bench.measure(1))
    served = parameter_server.train(client4, "small", 1, "float64")
    ours = run_on_ranks(nets.train, nets.OURS, "small", 1, "float64", client=client4)[0]

    assert listening["listening_workbench"] == 0 < listening["listening_gloo"]
    assert {(row["what"], row["arm"]) for row in rows} == {
        ("small", nets.OURS), ("small", nets.GLOO), ("feeding", nets.BATCHES), ("feeding", nets.LOADER),
        ("streaming", nets.STREAM), ("streaming", nets.LOADER),
    }  # fmt: skip
    assert min(row["ms"] for row in rows) > 0
    np.testing.assert_allclose(served.losses, ours.losses, atol=1e-12, rtol=0)


def test_the_collectives_bench_has_the_same_of_torch_and_of_mpi(client4):
    rows = run_on_ranks(torched.measured, [2048, 4096], client=client4)[0]

    assert [(row["operation"], row["nbytes"]) for row in rows] == [*product(torched.OPERATIONS, (2048, 4096))]
    assert min(row[f"{kind}_us"] for row in rows for kind in ("mpi", "torch")) > 0


def test_gradients_are_in_the_traffic_of_the_cluster(cluster4, client4):
    def sent():
        found = cluster4.metrics("operations")
        return found[found["operation"] == "Allreduce"]["bytes"].sum()

    before = sent()
    run_on_ranks(torched.ddp, "float64", 5, client=client4)
    gradients = 8 * sum(weights.numel() for weights in torched.net().parameters())
    until("the gradients in the metrics", lambda: sent() - before >= 4 * 5 * gradients)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("twice", "InvalidRequest: torch.distributed is already initialized in this process.* End the other"),
        ("average of integers", "InvalidRequest: .* has no ReduceOp.AVG for torch.int64. Choose one of SUM, PRODUCT"),
        (
            "sum of short complex numbers",
            "InvalidRequest: .* cannot reduce torch.complex32. Convert the tensor to complex64",
        ),
        ("fit of Keras", "InvalidRequest: fit of Keras would train a separate model on each rank"),
        ("bits of real numbers", "InvalidRequest: .* has no ReduceOp.BAND for torch.float32"),
        (
            "another memory",
            "InvalidRequest: a tensor is on meta, .* of the host or of a GPU .cuda.. Pass tensor.cpu",
        ),
        ("sizes", "InvalidRequest: the output has 12 elements, not 4 times the 2 of the input"),
        ("monitored", "ValueError: monitored_barrier is only implemented for GLOO"),
        ("gloo", "InvalidRequest: the groups of .* have no store, .* Make groups without backend="),
        ("split", "RuntimeError: No device associated with the default pg"),
        ("shrink", "RuntimeError: Cannot access device backend for process group"),
        ("over", r"InvalidRequest: this process group ended with its distributed\(\) block"),
    ],
)
def test_what_cannot_be_is_refused_in_words_on_all_ranks(client4, what, said):
    for words in run_on_ranks(torched.refused, what, client=client4):
        assert re.search(said, words)
    assert works(client4)


@ON_EVERY_MPI
def test_collectives_of_tensors_that_do_not_fit_are_refused(client4):
    for rank, said in enumerate(run_on_ranks(torched.unfitting, client=client4)):
        ends = {
            "all_gather": f"have [3, 3, 3, 3] elements. Pass 4 tensors, that of rank {rank} with 2 elements.",
            "all_gather of more": f"2, 2] elements. Pass 4 tensors, that of rank {rank} with 2 elements.",
            "all_gather_single": "output is of torch.float64 and the input of torch.float32. Pass tensors of one type.",
            "reduce_scatter_single": "is of torch.bfloat16 and the output of torch.float32. Pass tensors of one type.",
            "all_to_all": f"inputs have [2, 2, 2, 2] elements. Pass 4 tensors, that of rank {rank} with 3 elements.",
            "equal": "divided equally among 4 ranks. Pass split sizes, the number of rows for each rank.",
            "sizes": "has 16 for them. Pass the same number of rows in the input and in the output.",
            "large splits": "[4, 4, 4, 4] are not valid. Pass a number of rows for each of the 4 ranks, 4 together.",
            "few splits": "sizes [4] are not valid. Pass a number of rows for each of the 4 ranks, 4 together.",
            "recv": "a message of 4 bytes arrived for a tensor of 8 bytes (torch.float32). Send and receive tensors of "
            "one type and number of elements.",
            "gather": "the outputs have [3] elements. Pass 1 tensor, each with 2 elements.",
            "gather of more": "the outputs have [1, 1] elements. Pass 1 tensor, each with 2 elements.",
            "scatter": "the inputs have [2] elements. Pass 1 tensor, each with 1 element.",
            "scatter of more": "the inputs have [1, 1] elements. Pass 1 tensor, each with 2 elements.",
        }
        assert {name: words[-len(ends[name]) :] for name, words in said.items()} == ends


@ON_EVERY_MPI
def test_an_exchange_may_have_its_input_as_output(client4):
    assert run_on_ranks(torched.to_itself, client=client4) == [
        [rank, 10 + rank, 20 + rank, 30 + rank] for rank in range(4)
    ]


@ON_EVERY_MPI
def test_a_program_may_destroy_its_groups(client4):
    assert run_on_ranks(torched.destroyed, client=client4) == [[4.0**6] * 2] * 4


@ON_EVERY_MPI
def test_a_message_may_be_sent_without_a_wait(client4):
    assert run_on_ranks(torched.unawaited, client=client4) == [[7.0]] * 4


@ON_EVERY_MPI
def test_a_mean_of_short_numbers_is_taken_before_it_is_rounded(client4):
    assert run_on_ranks(torched.large_mean, client=client4) == [[60_000.0] * 3] * 4


def test_the_threads_of_torch_are_those_of_before_after_a_training(client4):
    assert run_on_ranks(torched.threads_after, client=client4) == [3] * 4


def test_a_batch_may_have_fewer_rows_than_ranks(client4):
    assert run_on_ranks(torched.fewer_rows_than_ranks, client=client4) == [1, 1, 0, 0]


def test_a_module_without_weights_predicts(client4):
    import torch

    X = place(np.ones((8, 2), "float32"), client=client4)
    assert predict(torch.nn.Softmax(1), X, client=client4).compute().tolist() == [[0.5, 0.5]] * 8


@ON_EVERY_MPI
def test_a_message_of_torch_has_a_timeout(client4):
    said = run_on_ranks(torched.slow_message, client=client4)[0][0]
    assert "a message of torch.distributed did not arrive" in said


def trains(client):
    """Return whether the next call trains on all ranks, with the same threads as before."""
    many, one = run_on_ranks(torched.ddp, "float64", 3, client=client, timeout=2 * DEADLINE)[0]
    np.testing.assert_allclose(many, one, atol=1e-12, rtol=0)
    return True


@ON_EVERY_MPI
def test_a_rank_that_raises_in_backward_ends_the_training_and_the_next_trains_50_times_of_50(
    client4, tmp_path, record_property
):
    slowest = 0.0
    for cycle in range(CYCLES):
        which, step = (1 + 2 * cycle) % 4, str(tmp_path / f"step-{cycle}")
        with raises(ValueError) as caught:
            run_on_ranks(torched.train_until, "raises", which, step, client=client4, timeout=DEADLINE)
        assert caught.value.args[0] == "a bad gradient"
        slowest = max(slowest, time.time() - caught.value.args[1])
        assert f"raised on rank {which}" in caught.value.__notes__[0]
        assert trains(client4)
    record_property("slowest", slowest)
    assert slowest < BACK_WITHIN


@ON_EVERY_MPI
@pytest.mark.parametrize(
    ("function", "args"),
    [(torched.train_until, ("raises", None)), (torched.set_up_late, (2,)), (torched.set_up_for_ever, ())],
    ids=["in backward", "while a rank is awaited", "in the set-up"],
)
def test_a_training_that_is_cancelled_ends_on_all_ranks_and_the_next_trains_50_times_of_50(
    client4, tmp_path, record_property, function, args
):
    slowest = 0.0
    for cycle in range(CYCLES):
        step = tmp_path / f"step-{cycle}"
        call = spmd(function, client=client4).submit(*args, str(step))
        until("all ranks in it", lambda step=step: all(Path(f"{step}.{rank}").exists() for rank in range(4)))
        begin = time.monotonic()
        assert call.cancel()
        with pytest.raises(CancelledError):
            call.result(DEADLINE)
        until("all ranks to be back", lambda: all(what == "" for _, what in client4.run(doing).values()))
        slowest = max(slowest, time.monotonic() - begin)
        assert trains(client4)
    record_property("slowest", slowest)
    assert slowest < BACK_WITHIN


def test_a_cell_trains(client4):
    from workbench.cells import client as cells

    X, y = place(*torched.blobs(), client=client4)
    code = """
import torch
from torch.nn.parallel import DistributedDataParallel
from workbench.torch import batches, distributed
with distributed(comm):
    model = DistributedDataParallel(torch.nn.Linear(6, 3).double())
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    for epoch in range(3):
        for rows, labels in batches(comm, X, y, size=24, seed=epoch):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
losses[0], losses[-1], model.module.weight.sum().item()
"""
    result = cells.run(code, {"X": X, "y": y}, client=client4, values=True)
    result.check()

    found = list(result.values())
    assert all(last < first / 2 for first, last, _ in found)
    assert len({weights for _, _, weights in found}) == 1


def test_the_mean_of_arrays_of_several_libraries_takes_a_message_for_each_type(client4, device):
    for means, calls in on_parts(client4, 4, torched.averaged, device=device):
        assert (means, calls) == ({1.5}, 3)  # the first makes sure that all ranks have the same arrays


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("shapes", r"same shapes and types on all ranks\. Rank 0 has \[\(\(1,\), 'float64'\)\], and rank 3 "),
        ("integers", r"takes real and complex numbers, not int64\. Convert the array with astype"),
        ("list", r"takes arrays of NumPy, PyTorch or with DLPack that can be copied to .*, not list \("),
    ],
)
def test_arrays_without_a_mean_are_refused(client4, kind, said):
    with pytest.raises(InvalidRequest, match=said):
        run_on_ranks(torched.not_averaged, kind, client=client4)


def test_batches_have_the_same_rows_on_any_number_of_ranks_and_each_epoch_has_another_order(client4):
    one, two, four = (on_parts(client4, size, torched.batched_on_part, size, 37)[0] for size in (1, 2, 4))
    assert one == two == four
    assert one[0] != one[1]
    assert [len(batch) for batch in one[0]] == [8] * 4
    for epoch in one:
        rows = [row for batch in epoch for row in batch]
        assert len(rows) == len(set(rows)) == 32


@pytest.mark.parametrize("shuffle", ["exchange", "local", None])
def test_every_row_is_in_a_batch_of_each_epoch(client4, shuffle):
    X, y = place(np.arange(41.0)[:, None], np.arange(41))
    for epoch in run_on_ranks(torched.batched, X, y, 2, size=8, shuffle=shuffle, drop_last=False)[0]:
        assert sorted(row for batch in epoch for row in batch) == list(range(41))


def test_tensors_have_the_memory_of_the_blocks(client4):
    assert run_on_ranks(torched.addresses, place(np.ones((40, 3)))) == [[True, True]] * 4


@pytest.mark.parametrize(
    ("options", "option"),
    [({"size": 3}, "size"), ({"size": 400}, "size"), ({"size": 8, "shuffle": "exchnge"}, "shuffle")],
)
def test_batches_that_cannot_be_are_refused(client4, options, option):
    X, y = place(np.ones((40, 3)), np.ones(40))
    with raises(InvalidRequest, option=option, given=options[option]):
        run_on_ranks(torched.batched, X, y, 1, **options)


def test_a_fit_has_the_losses_of_one_process_and_its_module_predicts(client4, device):
    import torch

    X, y = place(*torched.blobs())
    model = torched.net()
    held_out = place(X[:50].compute(), y[:50].compute())
    history = fit(model, torched.cross_entropy, X, y, epochs=3, size=24, validation=held_out, device=device)

    np.testing.assert_allclose(
        [record["loss"] for record in history], torched.losses_of_one_process(3, 24), atol=1e-12, rtol=0
    )
    predicted = predict(model, X, size=50, device=device)
    assert predicted.chunks[0] == X.chunks[0]
    expected = model(torch.from_numpy(X.compute())).detach()
    np.testing.assert_allclose(predicted.compute(), expected.numpy(), atol=1e-12)
    loss = torched.cross_entropy(expected[:50], torch.from_numpy(y[:50].compute())).item()
    assert history[-1]["validation_loss"] == pytest.approx(loss, abs=1e-12)


def test_a_fit_takes_blocks_on_a_device(client4, device):
    X, y = place(*torched.blobs(), device=device)
    history = fit(torched.net(), torched.cross_entropy, X, y, epochs=3, size=24, device=device)

    np.testing.assert_allclose(
        [record["loss"] for record in history], torched.losses_of_one_process(3, 24), atol=1e-12, rtol=0
    )


def test_a_device_that_a_rank_does_not_have_is_refused(client4):
    X, y = place(*torched.blobs())
    with raises(InvalidRequest, option="device", given="cuda:99"):
        fit(torched.net(), torched.cross_entropy, X, y, device="cuda:99")


def test_a_validation_loss_is_that_of_the_module_with_running_means_too(client4):
    import torch

    X, y = place(*torched.blobs(), client=client4)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)).double()
    options = {"epochs": 2, "size": 24, "validation": (X, y), "client": client4}
    history = fit(model, torched.cross_entropy, X, y, **options)

    rows, labels = (torch.from_numpy(part) for part in torched.blobs())
    loss = torched.cross_entropy(model.eval()(rows), labels).item()
    assert history[-1]["validation_loss"] == pytest.approx(loss, abs=1e-12)


def test_a_validation_loss_is_that_of_all_rows_when_ranks_have_none(client4):
    import torch

    X, y = place(*torched.blobs(), client=client4)
    few = run_on_ranks(torched.of_rank, X, y, [1, 2], client=client4, result="blocks")
    model = torched.net()
    history = fit(model, torched.cross_entropy, X, y, epochs=1, size=24, validation=few, client=client4)

    rows, labels = (torch.from_numpy(part[60:180]) for part in torched.blobs())
    loss = torched.cross_entropy(model(rows), labels).item()
    assert history[0]["validation_loss"] == pytest.approx(loss, abs=1e-12)


def test_a_fit_goes_on_from_its_checkpoint_with_another_number_of_ranks(client4, tmp_path, device):
    X, y = place(*torched.blobs())
    whole = fit(torched.net(), torched.cross_entropy, X, y, epochs=3, size=24, device=device)
    file = tmp_path / "checkpoint.pt"
    first = fit(torched.net(), torched.cross_entropy, X, y, epochs=1, size=24, checkpoint=str(file), device=device)
    resumed = run_on_ranks(torched.resumed, str(file), 3, client=client4)[0]

    assert [first[0], *resumed] == [pytest.approx(record, abs=1e-12) for record in (whole[0], *whole)]


def test_a_fit_ends_when_the_loss_does_not_fall_or_the_callback_says_so(client4):
    X, y = place(*torched.blobs())
    options = {
        "epochs": 9,
        "size": 24,
        "optimizer": torched.still,
        "schedule": torched.shrinking,
        "shuffle": None,
        "client": client4,
    }
    assert len(fit(torched.net(), torched.cross_entropy, X, y, patience=2, **options)) == 3
    assert (
        len(
            fit(
                torched.net(),
                torched.cross_entropy,
                X,
                y,
                callback=lambda its: np.equal(its["iteration"], 2),
                **options,
            )
        )
        == 2
    )
    with raises(InvalidRequest, option="epochs"):
        fit(torched.net(), torched.cross_entropy, X, y, epochs=0)
