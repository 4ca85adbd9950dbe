"""Each error can be caught as the builtin that a caller would expect, and hints name what is allowed."""

from __future__ import annotations

import builtins
import inspect
import json
import pickle
import re

import pytest
from distributed import protocol
from distributed.utils import truncate_exception
from hypothesis import given
from hypothesis import strategies as st

from workbench import errors
from workbench.errors import ClusterNotFound, InvalidRequest, WorkbenchError, did_you_mean, from_fields
from workbench.hints import NOTEBOOK, PANEL, TERMINAL, Command

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


def drawn() -> dict[str, tuple[str, str | None]]:
    """Return parent and builtin of every class, as the tree in the docstring of the module shows them."""
    found = {}
    parents = {}
    for line in errors.__doc__.splitlines():
        if match := re.search(r"^([ │]+)(?:[├└]── )?(\w+)(?: +\((\w+)\))?", line):
            depth = line.index(match[2])
            above = [name for indent, name in sorted(parents.items()) if indent < depth]
            found[match[2]] = (above[-1] if above else "Exception", match[3])
            parents = {indent: name for indent, name in parents.items() if indent < depth} | {depth: match[2]}
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    tree = drawn()
    assert set(tree) == {kind.__name__ for kind in CLASSES}
    for kind in CLASSES:
        parent, builtin = tree[kind.__name__]
        assert kind.__mro__[1].__name__ == parent
        if builtin is not None:
            assert issubclass(kind, getattr(builtins, builtin))


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_shows_its_sentence_as_it_is(kind):
    assert str(kind("no cluster named 'x'.")) == "no cluster named 'x'."


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_travels_between_processes(kind):
    again = pickle.loads(pickle.dumps(kind("sentence")))  # noqa: S301  (made here)
    assert (type(again), str(again)) == (kind, "sentence")


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_that_was_raised_travels_through_dask(kind):
    try:
        raise kind("sentence")
    except WorkbenchError as error:
        again = protocol.pickle.loads(protocol.pickle.dumps(error))
    assert (type(again), str(again)) == (kind, "sentence")


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_that_dask_cuts_off_keeps_its_class(kind):
    error = truncate_exception(kind("no disk" * 10_000))

    assert type(error) is kind
    assert error.message.startswith("Long error message: no disk")


FIELDS = {
    "option": "ranks_per_node",
    "given": "0",
    "allowed": "a whole number",
    "hint": ("Stop it: ", Command("stop", "a"), "."),
    "log": "world-0.log:\n    no disk",
    "ranks": (1, 3),
}


def _same(error, again):
    return (type(again), again.message, again.fields()) == (type(error), error.message, error.fields())


@pytest.mark.parametrize("kind", CLASSES)
def test_the_fields_of_an_error_travel_between_processes(kind):
    error = kind("sentence.", **FIELDS)

    for again in (
        pickle.loads(pickle.dumps(error)),  # noqa: S301  (made here)
        protocol.pickle.loads(protocol.pickle.dumps(error)),
        from_fields(json.loads(json.dumps(error.fields()))),
    ):
        assert _same(error, again)
        assert again.hint == FIELDS["hint"]


def test_an_error_of_a_class_that_is_not_known_here_keeps_its_fields():
    error = from_fields({**ClusterNotFound("sentence.", **FIELDS).fields(), "kind": "annotations"})

    assert _same(WorkbenchError("sentence.", **FIELDS), error)


@pytest.mark.parametrize(
    ("place", "command"),
    [(NOTEBOOK, "%mpicluster stop a"), (TERMINAL, "`workbench stop a`"), (PANEL, 'the button "Stop"')],
)
def test_an_error_is_worded_for_its_place_with_its_log_below(place, command):
    error = WorkbenchError("no start.", **FIELDS)

    assert error.words(place) == f"no start. Stop it: {command}."
    assert error.text(place) == f"{error.words(place)}\n{FIELDS['log']}"


def test_the_text_of_an_error_is_that_for_a_notebook():
    error = WorkbenchError("no start.", **FIELDS)

    assert str(error) == error.text(NOTEBOOK)


@pytest.mark.parametrize(
    ("option", "allowed", "words"),
    [
        ("ranks_per_node", "a whole number", "ranks-per-node 'slrm' is not valid. Choose a whole number."),
        ("workbench.size", "a size", "the setting workbench.size 'slrm' is not valid. Choose a size."),
        ("scheduler", ("slurm", "pbs"), "scheduler 'slrm' is not valid. Did you mean 'slurm'? (allowed: slurm, pbs)."),
    ],
)
def test_an_error_without_a_message_is_worded_from_its_fields(option, allowed, words):
    error = InvalidRequest(option=option, given="slrm", allowed=allowed)

    assert str(error) == words
    assert (error.option, error.given, error.allowed) == (option, "slrm", allowed)


def test_what_was_given_is_kept_as_it_can_be_shown():
    given = object()

    assert json.loads(json.dumps(WorkbenchError("x", given=given).fields()))["given"] == repr(given)


def test_an_error_that_is_converted_keeps_its_fields():
    error = ClusterNotFound("sentence.", **FIELDS).converted(InvalidRequest, "other words.", log="")

    assert _same(InvalidRequest("other words.", **{**FIELDS, "log": ""}), error)


def test_all_errors_can_be_caught_at_once():
    assert all(issubclass(kind, WorkbenchError) for kind in CLASSES)


def test_an_empty_cluster_not_found_has_an_empty_text():
    assert str(ClusterNotFound()) == ""


def test_the_closest_match_comes_first():
    assert did_you_mean("strat", ["stop", "start"]) == "did you mean 'start'? (allowed: stop, start)"


def test_a_beginning_is_closer_than_similar_letters():
    assert did_you_mean("stat", ["start", "status"]) == "did you mean 'status'? (allowed: start, status)"


def test_the_hyphens_of_options_are_no_similarity():
    assert did_you_mean("--fooo", ["--protocol"]) == "allowed: --protocol"
    assert did_you_mean("--al", ["--all"]) == "did you mean '--all'? (allowed: --all)"


def test_without_a_close_match_everything_allowed_is_listed():
    assert did_you_mean("xyz", ["start", "stop"]) == "allowed: start, stop"


def test_nothing_allowed_is_said_so():
    assert did_you_mean("x", iter(())) == "allowed: nothing"


@given(st.one_of(st.text(), st.integers(), st.none(), st.binary(), st.lists(st.text())))
def test_any_value_gets_a_hint(value):
    assert "allowed: start, stop" in did_you_mean(value, ("start", "stop"))
