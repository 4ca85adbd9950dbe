"""Subcommands and checks of other distributions, which a small one in a folder stands for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from workbench import cli
from workbench.commands import doctor
from workbench.commands.parse import complete, parse
from workbench.commands.table import SUBCOMMANDS, overview, subcommands
from workbench.errors import WorkbenchError
from workbench.hints import NOTEBOOK, TERMINAL

# The examples of the documentation.
PAGE = Path(__file__).parents[3] / "docs" / "contributing.md"
WINGS = {"bench", "dashboard", "demo", "report"}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution from its entry points and the code of its module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(entry_points, code="", name="site"):
        folder = tmp_path / f"{name}_tools-1.0.dist-info"
        folder.mkdir()
        (folder / "entry_points.txt").write_text(entry_points)
        (tmp_path / f"{name}_tools.py").write_text(code)
        monkeypatch.delitem(sys.modules, f"{name}_tools", raising=False)

    return write


def documented():
    """Return the entry points and the module of the example in the documentation."""
    section = PAGE.read_text(encoding="utf-8").partition("## Subcommands and checks of other packages\n")[2]
    table, code = (section.partition(f"```{language}\n")[2].partition("```")[0] for language in ("toml", "python"))
    lines = [line.replace('[project.entry-points."', "[").replace('"]', "]") for line in table.splitlines()]
    return "\n".join(lines).replace('"', ""), code


def test_the_documented_subcommand_is_in_help_and_completion_and_runs(install, capsys):
    install(*documented())

    assert complete([], "sp", TERMINAL) == ["space"]
    assert "workbench space [FOLDER] [--json] [--verbose]\n      show" in overview(TERMINAL)
    assert cli.main(["space", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: workbench space [FOLDER]")
    assert cli.main(["space", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"folder", "free"}


def test_the_documented_check_is_one_of_the_doctor(install):
    install(*documented())

    [result] = doctor.others(None)

    assert (result.check, result.verdict) == ("scratch", "ok")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("", "AttributeError: module 'site_tools' has no attribute 'THING'"),
        ("THING = 1", "TypeError: site_tools:THING is no "),
    ],
)
def test_what_cannot_be_loaded_is_named_with_its_distribution_and_everything_else_works(install, capsys, code, reason):
    install("[workbench.subcommands]\nthing = site_tools:THING\n[workbench.checks]\nlook = site_tools:THING\n", code)

    assert set(subcommands(TERMINAL)) == {each.name for each in SUBCOMMANDS if TERMINAL in each.places} | WINGS
    assert f"the subcommand 'thing' of site-tools cannot be loaded ({reason}" in overview(TERMINAL)
    assert cli.main(["thing"]) == cli.EXIT_FAILED
    assert "Install another version of site-tools, or uninstall it; everything else works." in capsys.readouterr().err
    [result] = doctor.others(None)
    assert (result.check, result.verdict) == ("look", "warning")
    assert result.detail.startswith(f"the check 'look' of site-tools cannot be loaded ({reason}")


def test_a_check_that_raises_is_a_result_that_names_its_distribution(install):
    install("[workbench.checks]\nlook = site_tools:look\n", "def look(cluster):\n    1 / 0\n")

    [result] = doctor.others(None)

    assert result.detail == "the check of site-tools ended with ZeroDivisionError: division by zero"


def test_a_group_that_help_does_not_have_is_refused_where_the_subcommand_is_made(install):
    code = "from workbench.commands.subcommand import Subcommand\nTHING = Subcommand('thing', 'do', 'other', print)\n"
    install("[workbench.subcommands]\nthing = site_tools:THING\n", code)

    assert "InvalidRequest: group 'other' is not valid." in overview(TERMINAL)


@pytest.mark.parametrize(
    ("name", "owners"), [("demo", "mpi-workbench and site-tools"), ("new", "other-tools and site-tools")]
)
def test_a_name_that_exists_twice_is_refused_with_both_distributions(install, name, owners):
    for distribution in ("site", "other"):
        if (name, distribution) != ("demo", "other"):
            install(f"[workbench.subcommands]\n{name} = {distribution}_tools:THING\n", name=distribution)

    with pytest.raises(WorkbenchError) as refused:
        parse([name], TERMINAL)

    assert {*refused.value.message.removesuffix(" have it.").rpartition("used: ")[2].split(" and ")} == {
        *owners.split(" and ")
    }
    assert refused.value.message in overview(TERMINAL)
    assert name not in subcommands(TERMINAL)


def test_a_name_of_the_core_stays_with_the_core_and_help_says_who_else_has_it(install):
    install("[workbench.subcommands]\nstop = site_tools:THING\n")

    assert parse(["stop", "--all"], NOTEBOOK).options["all"]
    assert "the subcommand 'stop' of site-tools cannot be used: mpi-workbench and site-tools have it." in overview(
        NOTEBOOK
    )


def test_an_installation_that_another_one_hides_has_no_entry_points(install, tmp_path, monkeypatch):
    install("[workbench.subcommands]\nthing = site_tools:THING\n")
    hiding = tmp_path / "hiding" / "site_tools-2.0.dist-info"
    hiding.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(hiding.parent))

    assert "thing" not in overview(TERMINAL)
