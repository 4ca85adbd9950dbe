"""Each option of a cluster is stated once, and all that derives from the statement has it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
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
# Python suggests the nearest name from 3.13 on.
SUGGESTION = r"\. Did you mean 'name'\?" if sys.version_info >= (3, 13) else ""


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


def test_the_docstring_has_every_option_with_its_type_and_text_in_the_order_of_the_signature():
    section = (inspect.getdoc(MPICluster) or "").partition("Parameters\n----------\n")[2].partition("\n\nRaises\n")[0]

    entries = re.findall(r"^(\w+) : (.*)\n((?:    .*\n?)+)", section, re.MULTILINE)
    assert [name for name, _, _ in entries] == [*NAMES, *OF_THE_OBJECT]
    for option, (_, kind, text) in zip(options(), entries, strict=False):
        assert kind == documented_type(option), option.name
        assert " ".join(text.split()) == " ".join(option.doc.split()), option.name


def documented_type(option):
    """Return the type of an option as in a docstring of numpydoc."""
    kinds = " or ".join("sequence of str" if kind == "Sequence[str]" else kind for kind in option.kinds)
    if option.choices:
        kinds = json.dumps(option.choices).replace("[", "{").replace("]", "}")
    default = "optional" if option.default is None else f"default={option.default!r}".replace("'", '"')
    return f"{kinds}, {default}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nmae": "a"}, rf"^MPICluster\.__init__\(\) got an unexpected keyword argument 'nmae'{SUGGESTION}$"),
        ({"dry_run": True}, r"unexpected keyword argument 'dry_run'"),
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
