"""The frames of an object that is broadcast."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from support.raised import raises

from workbench.collective.broadcast_rank import _from_frames, _to_frames


class Lengths(np.ndarray):
    """An array with a unit, like those of packages for physics."""

    def __array_finalize__(self, source):
        self.unit = getattr(source, "unit", "m")

    def __reduce__(self):
        make, arguments, state = super().__reduce__()
        return make, arguments, (*state, self.unit)

    def __setstate__(self, state):
        super().__setstate__(state[:-1])
        self.unit = state[-1]


def lengths():
    array = np.arange(3.0).view(Lengths)
    array.unit = "km"
    return array


@pytest.mark.parametrize("table", [["word"] * 10_000, dict.fromkeys(range(10_000), "word")], ids=["list", "dict"])
def test_a_large_table_has_few_frames(table):
    frames = _to_frames(table)
    assert len(frames) < 10
    assert _from_frames(frames) == table


def test_the_arrays_in_a_dict_are_sent_from_where_they_lie():
    arrays = {"weights": np.ones(100_000), "bias": np.zeros(100_000)}
    frames = [np.frombuffer(frame, np.uint8) for frame in _to_frames(arrays)]
    assert all(any(np.shares_memory(array, frame) for frame in frames) for array in arrays.values())


@pytest.mark.parametrize(
    "wrap", [lambda array: array, lambda array: [array], lambda array: {"x": np.ones(1), "y": array}]
)
def test_an_array_with_a_unit_keeps_its_unit(wrap):
    arrived = _from_frames(_to_frames(wrap(lengths())))
    array = arrived[0] if isinstance(arrived, list) else arrived["y"] if isinstance(arrived, dict) else arrived
    assert (type(array), array.unit, array.tolist()) == (Lengths, "km", [0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    "array",
    [np.ma.array([1.0, 2.0], mask=[False, True]), np.rec.array([(1, 2.0)], dtype="i8,f8")],
    ids=lambda array: type(array).__name__,
)
def test_an_array_keeps_its_type(array):
    arrived = _from_frames(_to_frames(array))
    assert type(arrived) is type(array)
    np.testing.assert_array_equal(arrived, array)


def test_a_tensor_of_a_type_that_numpy_does_not_have_arrives():
    import torch

    weights = torch.arange(3, dtype=torch.bfloat16)
    for sent in (weights, torch.nn.Parameter(weights, requires_grad=False), weights.to_sparse()):
        assert torch.equal(_from_frames(_to_frames(sent)).to_dense(), weights)
        assert torch.equal(_from_frames(_to_frames({"weights": sent}))["weights"].to_dense(), weights)


def test_layers_that_share_weights_share_them_on_the_ranks_too():
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).bfloat16()
    module[1].weight = module[0].weight
    arrived = _from_frames(_to_frames(module))
    assert arrived[1].weight is arrived[0].weight
    assert torch.equal(arrived[0].weight, module[0].weight)


class Exits:
    """Raises SystemExit when it arrives."""

    def __reduce__(self):
        return sys.exit, ("needs a GPU",)


def test_an_object_whose_reading_would_end_the_event_loop_of_a_rank_is_an_error():
    with raises(pickle.UnpicklingError, args=("SystemExit: needs a GPU",)):
        _from_frames(_to_frames(Exits()))
