"""What `support.pbs_sim` has for the programs of PBS; `python -IS pbs_programs.py PROGRAM FOLDER [ARGUMENT]...`.

A mom on each node runs what it is asked for at a socket in the folder, which all nodes see. Everything that is known of
a job is in one file, which `qsub` writes and the mom of its first node changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

SERVER = "pbshead"
# Seconds between the two signals that end a job.
_KILL_DELAY = 10.0
_UNKNOWN, _FINISHED = 153, 35
# By these a task asks its mom to start others.
_TASK = {"PBS_JOBCOOKIE": "0", "PBS_NODENUM": "0", "PBS_TASKNUM": "1", "PBS_MOMPORT": "15003"}


class Mom:
    """Runs tasks of jobs on one node, each in a separate session, by which they are found at the end."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder, self._node = folder, node
        self._sessions: dict[str, list[int]] = {}

    def serve(self) -> NoReturn:
        path = self._folder / "moms" / self._node
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            while True:
                threading.Thread(target=self._answer, args=(server.accept()[0],), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            message, streams, _, _ = socket.recv_fds(connection, 2**16, 2)
            request = json.loads(message)
            if request["do"] == "job":
                connection.close()
                self._job(request["job"])
            elif request["do"] == "end":
                self._end(request["job"], signal.Signals(request["signal"]))
                connection.sendall(b"0")
            else:
                task = self._start(request["job"], request["command"], *streams)
                # Who has passed them may wait for their end.
                for stream in streams:
                    os.close(stream)
                # The requesting process may have been killed meanwhile: the task continues.
                with contextlib.suppress(OSError):
                    connection.sendall(b"%d" % (task.wait() % 256))

    def _job(self, job: str) -> None:
        """Run a job whose first node this is, and end all that it has left."""
        told = read(self._folder, job)
        nodefile = self._local("aux", job)
        nodefile.parent.mkdir(exist_ok=True)
        nodefile.write_text("".join(f"{node}\n" * slots for node, slots in told["nodes"].items()))
        with (self._folder / "log" / f"job-{job}").open("wb") as output:
            script = self._start(job, ["/bin/bash", told["script"]], output.fileno(), output.fileno())
        code = script.wait()
        for node in told["nodes"]:
            ask(self._folder, node, do="end", job=job, signal=signal.SIGKILL)
        nodefile.unlink()
        write(self._folder, told | {"state": "F", "code": code if code >= 0 else 256 - code, "end": time.time()})

    def _start(self, job: str, command: list[str], out: int, err: int) -> subprocess.Popen[bytes]:
        home, local = self._folder / "home", self._local(f"pbs.{job}")
        local.mkdir(exist_ok=True)
        environment = {
            "HOME": str(home),
            "PATH": f"{self._folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "TMPDIR": str(local),
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_JOBID": job,
            "PBS_JOBDIR": str(home),
            # It is there on the first node alone.
            "PBS_NODEFILE": str(self._local("aux", job)),
            **_TASK,
        }
        task = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=home, umask=0o077,
            start_new_session=True,
        )  # fmt: skip
        self._sessions.setdefault(job, []).append(task.pid)
        return task

    def _end(self, job: str, number: signal.Signals) -> None:
        for last, patience in ((number, _KILL_DELAY), (signal.SIGKILL, _KILL_DELAY)):
            deadline = time.monotonic() + patience
            for process in (left := self._tasks(job)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, last)
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = self._tasks(job)
        shutil.rmtree(self._local(f"pbs.{job}"), ignore_errors=True)

    def _tasks(self, job: str) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (path / "stat").read_text().rpartition(") ")[2][:1]
                if os.getsid(int(path.name)) in self._sessions.get(job, []) and state != "Z":
                    found.append(int(path.name))
        return found

    def _local(self, *parts: str) -> Path:
        return self._folder.joinpath("local", *parts)


def ask(folder: Path, node: str, **request: Any) -> int:
    """Have the mom of a node do something and return the exit code; the output of a task is this process's."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "moms" / node))
        socket.send_fds(connection, [json.dumps(request).encode()], [1, 2] if request["do"] == "task" else [])
        return int(connection.recv(16) or b"0")


def read(folder: Path, job: str) -> dict[str, Any] | None:
    try:
        return json.loads((folder / "jobs" / job.partition(".")[0]).read_text())
    except OSError:
        return None


def write(folder: Path, told: dict[str, Any]) -> None:
    path = folder / "jobs" / told["id"].partition(".")[0]
    path.with_name(f".{path.name}").write_text(json.dumps(told))
    path.with_name(f".{path.name}").replace(path)


def all_jobs(folder: Path) -> list[dict[str, Any]]:
    paths = (path for path in (folder / "jobs").iterdir() if path.name.isdigit())
    return [json.loads(path.read_text()) for path in paths]


def qsub(folder: Path, *arguments: str) -> int:
    """Start the job immediately: each chunk gets a node that no other job has."""
    script = Path(arguments[-1]).absolute()
    text = script.read_text()
    chunks = re.search(r"^#PBS -l select=(\S+)", text, re.MULTILINE)[1].split("+")
    slots = [int(re.search(r"mpiprocs=(\d+)", chunk)[1]) for chunk in chunks for _ in range(int(chunk.split(":")[0]))]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jobs = all_jobs(folder)
        taken = {node for job in jobs if job["state"] == "R" for node in job["nodes"]}
        free = [path.name for path in sorted((folder / "moms").iterdir()) if path.name not in taken]
        if len(free) < len(slots):
            return _refuse(f"qsub: {len(free)} nodes are free, and {len(slots)} asked for", 188)
        job = f"{len(jobs) + 1}.{SERVER}"
        told = {"id": job, "state": "R", "nodes": dict(zip(free, slots, strict=False)), "start": time.time()}
        walltime = re.search(r"^#PBS -l walltime=(\S+)", text, re.MULTILINE)[1]
        name = re.search(r"^#PBS -N (\S+)", text, re.MULTILINE)[1]
        write(folder, told | {"script": str(script), "walltime": walltime, "name": name})
    ask(folder, free[0], do="job", job=job)
    print(job)  # noqa: T201
    return 0


def qstat(folder: Path, *arguments: str) -> int:
    """Print jobs as ``-x -f -F json`` does."""
    if arguments[:1] != ("-x",):
        print("pbs_version = 23.06.06")  # noqa: T201
        return 0
    found, code = {}, 0
    for job in arguments[4:]:
        if (told := read(folder, job)) is None:
            code = _refuse(f"qstat: Unknown Job Id {job}", _UNKNOWN)
            continue
        found[told["id"]] = {
            "Job_Name": told["name"],
            "job_state": told["state"],
            "exec_host": "+".join(f"{node}/0*{slots}" for node, slots in told["nodes"].items()),
            "stime": time.ctime(told["start"]),
            "Resource_List": {"walltime": told["walltime"]},
            "substate": 42 if told["state"] == "R" else 92,
        }
        if told["state"] == "F":
            found[told["id"]] |= {"Exit_status": told["code"], "obittime": time.ctime(told["end"])}
    print(json.dumps({"timestamp": int(time.time()), "pbs_server": SERVER, **({"Jobs": found} if found else {})}))  # noqa: T201
    return code


def qselect(folder: Path, _: str, name: str) -> int:
    """List the jobs of a name that have not ended."""
    for job in all_jobs(folder):
        if job["name"] == name and job["state"] != "F":
            print(job["id"])  # noqa: T201
    return 0


def qdel(folder: Path, job: str) -> int:
    told = read(folder, job)
    if told is None:
        return _refuse(f"qdel: Unknown Job Id {job}", _UNKNOWN)
    if told["state"] == "F":
        return _refuse(f"qdel: Job has finished {job}", _FINISHED)
    # The first node's part ends the others'.
    return ask(folder, next(iter(told["nodes"])), do="end", job=told["id"], signal=signal.SIGTERM)


def pbs_tmrsh(folder: Path, host: str, *command: str) -> int:
    job = os.environ.get("PBS_JOBID", "")
    told = read(folder, job)
    if _TASK.keys() - os.environ.keys():
        return _refuse("pbs_tmrsh: tm_init: bad environment (17005)", 255)
    if told is None or host not in told["nodes"]:
        return _refuse(f"pbs_tmrsh: {host} is no node of job {job!r}", 1)
    return ask(folder, host, do="task", job=told["id"], command=command)


def mom(folder: Path, node: str) -> NoReturn:
    Mom(folder, node).serve()


def _refuse(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:]))
