from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raised import raises

from workbench.commands.parse import complete, parse
from workbench.commands.subcommand import ARGUMENT_GROUPS, SUBCOMMAND_GROUPS
from workbench.commands.table import NOTEBOOK, TERMINAL, subcommands
from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest
from workbench.launch.options import GROUPS, options
from workbench.text import split

EVERY = {**subcommands(NOTEBOOK), **subcommands(TERMINAL)}


def test_what_is_typed_becomes_a_subcommand_and_its_options():
    call = parse(split("start 8 --threads 2 --name 'big-one' --memory=4GB --dry-run  # it's eight"), NOTEBOOK)

    assert call.subcommand.name == "start"
    given = {key: value for key, value in call.options.items() if value not in (None, False)}
    assert given == {"ranks": "8", "threads": "2", "name": "big-one", "memory": "4GB", "dry_run": True}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("start --extra=--comment=a#b", ["start", "--extra=--comment=a#b"]),
        ("logs '#1' # the first", ["logs", "#1"]),
        ("logs 'a # b' c # d", ["logs", "a # b", "c"]),
        ("# start 4", []),
    ],
)
def test_a_comment_begins_between_words_as_in_a_shell(line, words):
    assert split(line) == words


def test_only_a_terminal_answers_in_json():
    assert parse(["list", "--json"], TERMINAL).options == {"all": False, "json": True, "verbose": False}
    with raises(InvalidRequest, given="--json", allowed=("--all", "--verbose", "--help")):
        parse(["list", "--json"], NOTEBOOK)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", r"^%mpicluster: missing subcommand\. Choose from: start, status, list, attach, .*--help"),
        ("strat 4", r"^%mpicluster strat: no such subcommand. Did you mean 'start'\? \(allowed: start, status,"),
        ("demo", r"^%mpicluster demo: no such subcommand. Allowed: start, status"),
        ("start --nmae x", r"^%mpicluster start: unknown option '--nmae'. Did you mean '--name'\? \(allowed: --name,"),
        ("start --nmae=x", r"unknown option '--nmae'. Did you mean '--name'"),
        ("start --thr 2", r"unknown option '--thr'. Did you mean '--threads'"),
        ("start --ranks 4", r"unknown option '--ranks', pass N without an option\. Usage: %mpicluster start \[N\] \["),
        ("start --rank=4", r"unknown option '--rank', pass N without an option\. Usage"),
        ("stop --name a", r"unknown option '--name', pass NAME without an option\. Usage: %mpicluster stop \[NAME\]"),
        ("start --hlep", r"unknown option '--hlep'\. Did you mean '--help'"),
        ("--hlep", r"no such subcommand\. Did you mean '--help'"),
        ("start 4 8", r"^%mpicluster start: unexpected '8'\. Usage: %mpicluster start \[N\] \[options\]"),
        ("start --name", r"^%mpicluster start: --name needs a value: .*\. usage: %mpicluster start"),
        ("status --verbose=3", r"^%mpicluster status: --verbose takes no value\. usage: %mpicluster status"),
        ("attach", r"^%mpicluster attach: the following arguments are required: NAME\. usage: .* attach NAME "),
        ("start --name=--", r"^%mpicluster start: --name=-- is not valid\. Omit the option"),
        ("start --extra --", r"^%mpicluster start: --extra=-- is not valid"),
        ("start --name 'a", r"^cannot read \"start --name 'a\": no closing quotation\. Close every quote\.$"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_one_sentence(line, message):
    with pytest.raises(InvalidRequest, match=message):
        parse(split(line), NOTEBOOK)


def test_an_unknown_word_is_a_field_of_its_error_with_the_words_there_are_and_the_remedy():
    for line, word, allowed, hint in (
        (["start", "--nmae", "x"], "--nmae", "--name", "Did you mean '--name'?"),
        (["strat"], "strat", "start", "Did you mean 'start'?"),
        (["--verson"], "--verson", "--version", "Did you mean '--version'?"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            parse(line, TERMINAL)
        assert refused.value.given == word
        assert allowed in refused.value.allowed
        assert hint in refused.value.hint[0]
        assert hint not in refused.value.message


def test_an_option_without_its_value_names_the_values():
    with raises(InvalidRequest, option="table") as refused:
        parse(["metrics", "--table"], TERMINAL)
    assert "ranks" in refused.value.allowed
    assert "ranks" in refused.value.hint[0]


def _typed(subcommand):
    """Return lists of words that may follow a subcommand."""
    known = [word for its in subcommand.arguments for word in (its.name, f"{its.name}=", f"{its.name}=--")]
    return st.lists(st.sampled_from([*known, "--", "-1"]) | st.text(max_size=8), max_size=4).map(
        lambda words: [subcommand.name, *words]
    )


@given(st.sampled_from([*EVERY.values()]).flatmap(_typed), st.sampled_from([NOTEBOOK, TERMINAL]))
def test_whatever_is_typed_is_refused_in_words_or_has_values_that_are_texts(words, place):
    try:
        options = parse(words, place).options
    except InvalidRequest:
        return
    many = {its.name.lstrip("-") for each in EVERY.values() for its in each.arguments if its.many}
    for name, value in options.items():
        values = value or [] if name in many else [value]
        assert all(its is None or isinstance(its, str | bool) for its in values), name


def test_a_negative_number_is_a_value_and_not_an_option():
    assert parse(["start", "-3"], NOTEBOOK).options["ranks"] == "-3"


@pytest.mark.parametrize(
    "line", ["scale 4 mpi --json", "scale 4 --json mpi", "scale --json 4 mpi", "scale --json -- 4 mpi"]
)
def test_options_may_stand_before_between_and_after_the_other_arguments(line):
    options = parse(split(line), TERMINAL).options

    assert (options["ranks"], options["name"], options["json"]) == ("4", "mpi", True)


def test_an_argument_after_two_dashes_is_no_option():
    options = parse(["stop", "--", "--all"], TERMINAL).options

    assert (options["name"], options["all"]) == ("--all", False)


@pytest.mark.parametrize("place", [NOTEBOOK, TERMINAL])
def test_help_of_a_place_shows_the_usage_of_every_subcommand_there(place):
    text = parse(["--help"], place).options["text"]

    assert all(
        subcommand.usage(place) in text and subcommand.help in text for subcommand in subcommands(place).values()
    )


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (NOTEBOOK, ["start and stop:", "look at a cluster:", "run:", "set up:"]),
        (TERMINAL, ["start and stop:", "look at a cluster:", "run:", "set up:"]),
    ],
)
def test_help_of_a_place_has_the_subcommands_in_groups(place, expected):
    text = parse(["--help"], place).options["text"]

    assert [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")] == expected
    assert text.count(f"\n  {place} ") == len(subcommands(place)), "each subcommand is in one group"
    assert {subcommand.group for subcommand in EVERY.values()} == set(SUBCOMMAND_GROUPS)


def test_help_of_start_has_the_options_in_groups():
    text = parse(["start", "--help"], TERMINAL).options["text"]

    sections = [section.partition(":\n") for section in text.split("\n\n")]
    typed = {head: re.findall(r"^  (--[\w-]+|N)", body, re.MULTILINE) for head, _, body in sections if body}
    assert text.startswith("usage: workbench start [N] [options]\n")
    assert list(typed) == list(ARGUMENT_GROUPS)
    assert typed["network"] == ["--interface", "--protocol", "--ssh-tunnel"]
    assert typed["output"] == ["--dry-run", "--json", "--verbose"]


def test_every_option_of_a_cluster_is_in_one_group():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(each.name for each in options())


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("subcommand", EVERY)
def test_help_of_a_subcommand_tells_what_each_of_its_options_means(subcommand, flag):
    call = parse([subcommand, flag], TERMINAL if TERMINAL in EVERY[subcommand].places else NOTEBOOK)

    assert call.subcommand is None
    told = " ".join(call.options["text"].split())
    for argument in EVERY[subcommand].arguments:
        assert argument.help in told


@pytest.mark.parametrize(
    ("words", "last", "expected"),
    [
        ([], "", list(subcommands(NOTEBOOK))),
        ([], "st", ["start", "status", "stop"]),
        ([], "x", []),
        (["start"], "--m", ["--memory", "--mpi"]),
        (["start", "--mpi"], "", ["auto", "openmpi", "mpich", "intelmpi"]),
        (["start", "--mpi"], "open", ["openmpi"]),
        (["start", "4", "--mpi", "auto"], "--m", ["--memory"]),
        (["start", "--scheduler"], "", ["auto", "local", "here", "slurm", "pbs"]),
        (["start", "--name"], "", []),
        (["stop"], "-", ["--all", "--verbose", "--help"]),
        (["list"], "", ["--all", "--verbose", "--help"]),
        (["strat"], "", []),
    ],
)
def test_completion_offers_what_may_come_next(words, last, expected):
    assert complete(words, last, NOTEBOOK) == expected


@pytest.mark.parametrize("words", [["attach"], ["stop"], ["logs", "--rank", "0"], ["scale", "4"], ["status"]])
def test_completion_offers_the_clusters_where_one_can_be_named(words, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    for name in ("alpha", "beta"):
        registry.create(Record(name=name, ranks=1))

    assert complete(words, "", NOTEBOOK) == ["alpha", "beta"]
    assert complete(words, "b", NOTEBOOK) == ["beta"]
    assert complete([*words, "alpha"], "b", NOTEBOOK) == []
