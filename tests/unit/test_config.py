"""Settings come from Dask's configuration, when they are used, and say so when they make no sense."""

from __future__ import annotations

from pathlib import Path

import dask
import pytest
import yaml
from support.raised import raises

import workbench
from workbench import config
from workbench.errors import InvalidRequest

DEFAULTS = yaml.safe_load(Path(workbench.__file__).with_name("workbench.yaml").read_text(encoding="utf-8"))["workbench"]
TIMES = [key for key in DEFAULTS if key.endswith(("-timeout", "-interval"))]


def test_a_setting_has_the_default_of_the_file():
    assert config.get("keep-logs") == DEFAULTS["keep-logs"]


def test_a_dotted_name_leads_into_sections():
    assert config.get("world.restarts") == DEFAULTS["world"]["restarts"]


def test_what_the_user_sets_wins_over_the_default():
    with dask.config.set({"workbench.keep-logs": 3}):
        assert config.get("keep-logs") == 3


def read_defaults_again():
    """Let the next use of a setting read the defaults, as the first use in a process does."""
    config._register_defaults.cache_clear()


def test_what_the_user_set_before_the_defaults_were_read_wins_too():
    with dask.config.set({"workbench.keep-logs": 3}):
        read_defaults_again()
        assert config.get("keep-logs") == 3


def test_an_unknown_setting_is_a_key_error():
    with pytest.raises(KeyError):
        config.get("no-such-thing")


def test_the_defaults_and_every_form_of_a_name_pass_the_check():
    config.check()
    with dask.config.set({"workbench.mpi.srun_args": ["-v"], "workbench.world": None}):
        config.check()


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        (
            "idle-timeuot",
            "1 h",
            "workbench.idle-timeuot, from dask.config.set, does not exist. Did you mean workbench.idle-timeout?",
        ),
        (
            "mpi.gaurd",
            False,
            "workbench.mpi.gaurd, from dask.config.set, does not exist. Did you mean workbench.mpi.guard?",
        ),
        ("mpi.guard", "off", "workbench.mpi.guard 'off' is not valid. Choose true or false"),
        ("template", 2, "workbench.template 2 is not valid. Choose true or false"),
        ("metrics.enabled", [], "workbench.metrics.enabled [] is not valid. Choose true or false"),
        ("mpi.extra-args", "-v", "workbench.mpi.extra-args '-v' is not valid"),
        ("keep-logs", -1, "workbench.keep-logs -1 is not valid"),
        ("cells.output-limit", "much", "workbench.cells.output-limit 'much' is not valid"),
        ("spmd.watchdog", "soon", "workbench.spmd.watchdog 'soon' is not valid"),
        ("ml.engine", "mpj", "workbench.ml.engine 'mpj' is not valid. Did you mean 'mpi'?"),
        ("scheduler", ["slurm"], "workbench.scheduler ['slurm'] is not valid"),
        ("interface", 7, "workbench.interface 7 is not valid"),
    ],
)
def test_a_name_or_a_value_that_is_not_valid_is_named_by_the_check(name, given, words):
    with dask.config.set({f"workbench.{name}": given}), pytest.raises(InvalidRequest) as error:
        config.check()
    assert words in str(error.value)


def test_a_switch_may_be_a_number():
    switches = dict.fromkeys(["template", "cancel-hopeless", "mpi.guard", "metrics.enabled"])
    with dask.config.set({f"workbench.{name}": 0 for name in switches}):
        config.check()
        assert [config.switch(name) for name in switches] == [False] * 4
    with dask.config.set({"workbench.mpi.guard": 1}):
        config.check()
        assert config.switch("mpi.guard") is True


@pytest.mark.parametrize(("variable", "section"), [("", "workbench"), ("__MPI", "workbench.mpi")])
def test_a_section_that_is_set_to_a_value_is_named_with_its_origin(variable, section, tmp_path, monkeypatch):
    content = "workbench: x" if section == "workbench" else "workbench: {mpi: x}"

    def refused(origin):
        words = rf"{section} 'x', from {origin}, is not valid: it is a section of settings"
        return pytest.raises(InvalidRequest, match=words)

    with dask.config.set({section: "x"}), refused("dask.config.set"):
        config.check()
    (tmp_path / "site.yaml").write_text(content, encoding="utf-8")
    monkeypatch.setattr(dask.config, "paths", [str(tmp_path)])
    with refused(r".*site\.yaml"):
        config.check()
    monkeypatch.setattr(dask.config, "paths", [])
    monkeypatch.setenv(f"DASK_WORKBENCH{variable}", "x")
    with refused(f"the variable DASK_WORKBENCH{variable}"):
        config.check()


def test_the_check_names_the_file_or_the_variable(tmp_path, monkeypatch):
    (tmp_path / "site.yaml").write_text("workbench: {mpi: {lancher: srun}}\n", encoding="utf-8")
    monkeypatch.setattr(dask.config, "paths", [str(tmp_path)])
    with dask.config.set({"workbench.mpi.lancher": "srun"}):
        with pytest.raises(
            InvalidRequest, match=r"from the file .*site\.yaml, does not exist.*workbench\.mpi\.launcher"
        ):
            config.check()
        monkeypatch.setenv("DASK_WORKBENCH__MPI__LANCHER", "srun")
        with pytest.raises(InvalidRequest, match=r"from the variable DASK_WORKBENCH__MPI__LANCHER, does not exist"):
            config.check()
    (tmp_path / "site.yaml").write_text("workbench: {keep-logs: -1}\n", encoding="utf-8")
    with (
        dask.config.set({"workbench.keep-logs": -1}),
        pytest.raises(
            InvalidRequest, match=r"keep-logs -1 is not valid\. .* The value is from the file .*site\.yaml\."
        ),
    ):
        config.check()


@pytest.mark.parametrize("key", TIMES)
def test_every_default_time_is_above_zero(key):
    with dask.config.set({f"workbench.{key}": DEFAULTS[key]}):
        assert config.seconds(key) > 0


@pytest.mark.parametrize(
    ("given", "seconds"), [("1 hour", 3600), ("90 s", 90), ("90", 90), (90, 90), (0.5, 0.5), ("500 ms", 0.5)]
)
def test_time_spans_are_given_in_words_or_seconds(given, seconds):
    with dask.config.set({"workbench.idle-timeout": given}):
        assert config.seconds("idle-timeout") == seconds


@pytest.mark.parametrize("given", ["soon", "", "s", "5 apples", "inf", 0, -1, "-1 s", float("nan"), True, None, [], {}])
def test_a_setting_that_is_no_time_is_named_with_what_it_is(given):
    with (
        dask.config.set({"workbench.idle-timeout": given}),
        raises(InvalidRequest, option="workbench.idle-timeout") as caught,
    ):
        config.seconds("idle-timeout")
    assert repr(given) in str(caught.value)


@pytest.mark.parametrize("given", ["--mca btl tcp", "--verbose", None, [["--mca", "btl"]], [1], {"--mca": "btl"}])
def test_arguments_of_a_command_are_a_list_and_a_text_is_not_taken_apart(given):
    with (
        dask.config.set({"workbench.mpi.extra-args": given}),
        raises(InvalidRequest, option="workbench.mpi.extra-args"),
    ):
        config.arguments("mpi.extra-args")


@pytest.mark.parametrize("given", ["three", "", None, -1, 1.5, True, []])
def test_a_number_of_restarts_that_is_no_number_is_named(given):
    with (
        dask.config.set({"workbench.world.restarts": given}),
        raises(InvalidRequest, option="workbench.world.restarts"),
    ):
        config.whole("world.restarts")


def test_the_defaults_outlive_a_setting_that_surrounded_their_first_use(monkeypatch):
    monkeypatch.delitem(dask.config.config, "workbench", raising=False)
    read_defaults_again()
    with dask.config.set({"workbench.keep-logs": 3}):
        assert config.get("keep-logs") == 3

    assert config.get("keep-logs") == DEFAULTS["keep-logs"]
