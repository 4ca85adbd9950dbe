"""Each option of a cluster is stated once, and all that derives from the statement has it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Sequence
from typing import get_type_hints

import pytest
from support.raised import raises
from support.requested import request

from workbench import MPICluster
from workbench.commands.table import subcommands
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest
from workbench.hints import TERMINAL
from workbench.launch.options import JobOptions, RecordOptions, Resources, options

OF_THE_OBJECT = ["asynchronous", "loop", "quiet"]
NAMES = [option.name for option in options()]


def test_the_constructor_has_every_option_with_its_default_and_no_private_parameter():
    parameters = inspect.signature(MPICluster).parameters

    assert list(parameters) == [*NAMES, *OF_THE_OBJECT]
    assert {name: parameters[name].default for name in NAMES} == {option.name: option.default for option in options()}
    positional = [each.name for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == ["ranks"]


def test_the_type_hints_of_the_constructor_have_every_option():
    hints = get_type_hints(MPICluster.__init__)

    assert list(hints) == [*NAMES, *OF_THE_OBJECT, "return"]
    assert (hints["ranks"], hints["extra"], hints["quiet"]) == (int | None, Sequence[str], bool)


def test_the_docstring_has_every_option_with_its_type_in_the_order_of_the_signature():
    section = (inspect.getdoc(MPICluster) or "").partition("Parameters\n----------\n")[2].partition("\n\nRaises\n")[0]

    entries = re.findall(r"^(\w+) : (.*)\n(    \S)", section, re.MULTILINE)
    assert [name for name, _, _ in entries] == [*NAMES, *OF_THE_OBJECT]
    kinds = {name: kind for name, kind, _ in entries}
    assert (kinds["ranks"], kinds["threads"], kinds["extra"]) == (
        "int, optional", "int, default=1", "sequence of str, default=()",
    )  # fmt: skip
    assert kinds["memory"] == "int or str, optional"
    assert kinds["walltime"] == "str, optional"
    assert kinds["protocol"] == '{"mpi", "tcp"}, default="mpi"'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"nmae": "a"},
            r"^MPICluster\.__init__\(\) got an unexpected keyword argument 'nmae'\. Did you mean 'name'\?$",
        ),
        ({"dry_run": True}, r"unexpected keyword argument 'dry_run'$"),
        ({"_job": None}, r"^MPICluster\.__init__\(\) got an unexpected keyword argument '_job'"),
    ],
)
def test_a_keyword_that_is_no_option_is_refused_as_by_any_function(given, message):
    with pytest.raises(TypeError, match=message):
        MPICluster(1, **given)


def test_the_subcommand_has_every_option_and_each_alone_is_given_as_it_was_typed():
    typed = [argument.name for argument in subcommands(TERMINAL)["start"].arguments]

    assert typed == [*(option.typed for option in options()), "--dry-run"]


def test_the_record_and_the_resources_have_the_options_that_are_theirs():
    assert {option.name for option in options(RecordOptions)} < {field.name for field in dataclasses.fields(Record)}
    assert [field.name for field in dataclasses.fields(Resources)] == [option.name for option in options(JobOptions)]


def test_what_is_no_host_is_refused_ahead_of_the_submission(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))

    for given in ("", "-oProxyCommand=x", "a b", 5):
        with raises(InvalidRequest, option="ssh_tunnel"):
            request(1, ssh_tunnel=given)
