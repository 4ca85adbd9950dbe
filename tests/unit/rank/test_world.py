"""Objects of classes of the notebook are pickled with their arrays."""

from __future__ import annotations

import pickle

import numpy as np

from workbench.rank.world import _or_by_value


class Point:
    pass


Point.__module__ = "__main__"  # as in a notebook


def test_arrays_before_and_after_an_object_of_the_notebook_keep_their_values():
    buffers = []
    dumps = _or_by_value(pickle.dumps)

    data = dumps([np.zeros(10), Point(), np.ones(10)], pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)

    first, _, last = pickle.loads(data, buffers=buffers)  # noqa: S301  (made above)
    assert (first == 0).all()
    assert (last == 1).all()
