"""PyTorch on the ranks. One file, so that one world imports PyTorch, once."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from support import torched
from support.patience import DEADLINE
from support.processes import until
from support.spmd import be_patient, total

from workbench import MPICluster, place, run_on_ranks, spmd
from workbench.errors import InvalidRequest, RankLost
from workbench.torch import fit, predict

pytestmark = pytest.mark.mpi_flavour

SIZES = pytest.mark.parametrize("size", [1, 2, 4])


def on_parts(client, size, function, *args):
    """Return what a function returned on parts of this many ranks."""
    return run_on_ranks(torched.of_part, size, function, *args, client=client, timeout=4 * DEADLINE)


def works(client):
    return run_on_ranks(total, client=client, timeout=DEADLINE) == [6] * 4


@SIZES
@pytest.mark.parametrize("dtype", torched.DTYPES)
def test_every_collective_of_torch_does_what_numpy_does(client4, size, dtype):
    assert len({tuple(names) for names in on_parts(client4, size, torched.reductions, dtype)}) == 1
    on_parts(client4, size, torched.collectives, dtype)


@SIZES
def test_messages_objects_groups_and_coalesced_calls_work(client4, size):
    versions = on_parts(client4, size, torched.others)
    assert len(set(versions)) == 1


@SIZES
@pytest.mark.parametrize(("dtype", "apart"), [("float64", 1e-12), ("float32", 1e-5)])
def test_losses_of_data_parallel_training_are_those_of_one_process(client4, size, dtype, apart):
    for many, one in on_parts(client4, size, torched.ddp, dtype):
        np.testing.assert_allclose(many, one, atol=apart, rtol=0)
        assert one[-1] < one[0] / 2


def test_two_models_train_in_one_step_in_groups_of_their_own(client4):
    for many, one in run_on_ranks(torched.two_models, client=client4):
        np.testing.assert_allclose(many, one, atol=1e-12, rtol=0)


def test_a_training_listens_at_no_port(client4):
    for before, within in run_on_ranks(torched.listening, client=client4):
        assert before == within


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
        ("twice", "InvalidRequest: torch.distributed is initialized in this process already.* end the other"),
        ("average of integers", "InvalidRequest: ReduceOp.AVG of torch.int64 cannot be .*allowed: SUM, PRODUCT"),
        ("sum of short complex numbers", "InvalidRequest: torch.complex32 is not reduced .* convert it to complex64"),
        ("bits of real numbers", "InvalidRequest: ReduceOp.BAND of torch.float32 cannot be"),
        ("another memory", "InvalidRequest: a tensor on meta was given to a process group .* pass tensor.cpu"),
        ("sizes", "InvalidRequest: the output has 12 elements, not 4 times the 2 of the input"),
        ("monitored", "ValueError: monitored_barrier is only implemented for GLOO"),
        ("split", "RuntimeError: No device associated with the default pg"),
        ("over", r"InvalidRequest: this process group ended with its distributed\(\) block"),
    ],
)
def test_what_cannot_be_is_refused_in_words_on_all_ranks(client4, what, said):
    for words in run_on_ranks(torched.refused, what, client=client4):
        assert re.search(said, words)
    assert works(client4)


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


def test_a_message_of_torch_has_a_timeout(client4):
    said = run_on_ranks(torched.slow_message, client=client4)[0][0]
    assert "a message of torch.distributed did not arrive" in said


def test_a_rank_that_raises_in_backward_ends_the_training_with_its_error_and_the_next_call_trains(client4, tmp_path):
    for which in (1, 3):
        with pytest.raises(ValueError, match="a bad gradient") as caught:
            run_on_ranks(torched.train_until, "raises", which, str(tmp_path / "step"), client=client4, timeout=DEADLINE)
        assert f"raised on rank {which} of world 0" in caught.value.__notes__[0]
        many, one = run_on_ranks(torched.ddp, "float64", 3, client=client4)[0]
        np.testing.assert_allclose(many, one, atol=1e-12, rtol=0)


def test_a_training_that_is_cancelled_ends_on_all_ranks_and_the_next_call_trains(client4, tmp_path):
    step = tmp_path / "step"
    training = spmd(torched.train_until).submit("raises", None, str(step))
    until("all ranks in the training", lambda: all((tmp_path / f"step.{rank}").exists() for rank in range(4)))
    training.cancel()
    many, one = run_on_ranks(torched.ddp, "float64", 3, client=client4, timeout=2 * DEADLINE)[0]
    np.testing.assert_allclose(many, one, atol=1e-12, rtol=0)


def test_the_mean_of_arrays_of_several_libraries_takes_a_message_for_each_type(client4):
    for means, calls in run_on_ranks(torched.averaged, client=client4):
        assert (means, calls) == ({1.5}, 3)  # the first makes sure that all ranks have the same arrays


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("shapes", r"same shapes and types on all ranks: rank 0 has \[\(\(1,\), 'float64'\)\], rank 3 "),
        ("integers", r"takes real and complex numbers, not int64: convert by astype"),
        ("list", r"takes arrays in the memory of the host, of NumPy, PyTorch or with DLPack, not list"),
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
    ("options", "said"),
    [
        ({"size": 3}, "size=3 is not valid. Choose at least 4, a row for each rank"),
        ({"size": 400}, r"size=400 is not valid: the ranks have \[10, 10, 10, 10\] rows, which do not fill a batch"),
        ({"size": 8, "shuffle": "exchnge"}, "shuffle='exchnge' is not valid: did you mean 'exchange'"),
    ],
)
def test_batches_that_cannot_be_are_refused(client4, options, said):
    X, y = place(np.ones((40, 3)), np.ones(40))
    with pytest.raises(InvalidRequest, match=said):
        run_on_ranks(torched.batched, X, y, 1, **options)


def test_a_fit_has_the_losses_of_one_process_and_its_module_predicts(client4):
    import torch

    X, y = place(*torched.blobs())
    model = torched.net()
    history = fit(model, torched.cross_entropy, X, y, epochs=3, size=24, validation=(X, y))

    np.testing.assert_allclose(
        [record["loss"] for record in history], torched.losses_of_one_process(3, 24), atol=1e-12, rtol=0
    )
    predicted = predict(model, X, size=50)
    assert predicted.chunks[0] == X.chunks[0]
    expected = model(torch.from_numpy(X.compute())).detach()
    np.testing.assert_allclose(predicted.compute(), expected.numpy(), atol=1e-12)
    loss = torched.cross_entropy(expected, torch.from_numpy(y.compute())).item()
    assert history[-1]["validation_loss"] == pytest.approx(loss, abs=1e-12)


def test_a_fit_goes_on_from_its_checkpoint_with_another_number_of_ranks(client4, tmp_path):
    X, y = place(*torched.blobs())
    whole = fit(torched.net(), torched.cross_entropy, X, y, epochs=3, size=24)
    file = tmp_path / "checkpoint.pt"
    first = fit(torched.net(), torched.cross_entropy, X, y, epochs=1, size=24, checkpoint=str(file))
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
    assert len(fit(torched.net(), torched.cross_entropy, X, y, callback=lambda epoch, _: epoch == 1, **options)) == 2
    with pytest.raises(InvalidRequest, match="epochs=0, patience=None: choose"):
        fit(torched.net(), torched.cross_entropy, X, y, epochs=0)


def test_the_examples_of_the_documentation_run(client4):
    page = Path(__file__).parents[2] / "docs" / "training.md"
    outcome = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (outcome.failed, outcome.attempted >= 15) == (0, True)


def test_a_rank_that_is_killed_in_backward_ends_the_training_and_the_others_are_told(tmp_path):
    with MPICluster(2, quiet=True) as cluster, Client(cluster) as client:
        client.run_on_scheduler(be_patient)
        with pytest.raises(RankLost):
            run_on_ranks(torched.train_until, "dies", 1, str(tmp_path / "step"), client=client, timeout=4 * DEADLINE)
