"""A hint names the command, the button or the field of the place where the user reads it."""

from __future__ import annotations

import json

import pytest

from workbench import hints
from workbench.commands.table import subcommands
from workbench.hints import NOTEBOOK, PANEL, TERMINAL, Command, Option

HINT = ("Stop it (", Command("stop", "a"), ") or choose another ", Option("gpus_per_rank"), ".")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (NOTEBOOK, "Stop it (%mpicluster stop a) or choose another --gpus-per-rank."),
        (TERMINAL, "Stop it (`workbench stop a`) or choose another --gpus-per-rank."),
        (PANEL, 'Stop it (the button "Stop") or choose another "GPUs per rank".'),
    ],
)
def test_a_hint_is_worded_for_its_place(place, words):
    assert hints.words(HINT, place) == words


@pytest.mark.parametrize("subcommand", {**subcommands(NOTEBOOK), **subcommands(TERMINAL)})
def test_a_command_is_one_that_can_be_typed_where_it_is_read(subcommand):
    command = Command(subcommand, "a")

    assert (subcommand in subcommands(TERMINAL)) == (command.at(TERMINAL) == f"`{TERMINAL} {subcommand} a`")
    if subcommand in subcommands(NOTEBOOK):
        assert command.at(NOTEBOOK) == f"{NOTEBOOK} {subcommand} a"


def test_what_the_panel_has_no_button_for_is_typed_in_a_terminal():
    assert Command("doctor").at(PANEL) == "`workbench doctor` in a terminal"


def test_the_list_of_clusters_is_the_panel_itself():
    assert Command("list").at(PANEL) == "the list of clusters"


@pytest.mark.parametrize("hint", ["", "Try again.", Command("list"), HINT, ()])
def test_a_hint_travels_as_json(hint):
    again = hints.from_json(json.loads(json.dumps(hints.to_json(hint))))

    assert again == hints.parts(hint)
