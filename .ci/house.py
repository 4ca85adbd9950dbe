"""``make house``: print the measures of the house, and fail where one is above its limit.

A limit is the value at its last change: it may fall, and rises only together with a reason in its commit. The target
of a measure is the value that the house shall reach. A *walk* is what one request passes: the files whose functions
are called, in the notebook, the head and one rank of a cluster of four ranks.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workbench"
WINGS = {"lab", "ml", "tune", "torch", "bench"}
# Measure: limit and target. A walk varies by a few files: a thread may begin its work before or after the request.
LIMITS = {
    "lines of the core": (43585, 31000),
    "lines in all": (72135, 54000),
    "modules of the core": (202, 165),
    "modules in all": (373, 330),
    "doors above four, in all packages": (46, 0),
    "names that wings take from the core": (145, 40),
    "private attributes that tests read": (60, 60),
    "sentences that tests match": (199, 200),
    "files of a start": (100, 70),
    "files of a call": (48, 32),
    "files of a cell": (47, 32),
    "files of a number": (37, 22),
    "files of a stop": (71, 45),
}
# Names that other projects define for their users, despite the underscore.
PUBLIC = {"_exit", "_meta", "_repr_html_"}
# Threads that sample all the time, and are part of no request.
SAMPLING = {"metrics/sampler.py", "metrics/node_reporter.py", "metrics/shared_slots.py", "metrics/activity.py"}

TRACER = """
import os, sys, threading, time
files, number, last = {}, None, {}
def trace(frame, event, arg):
    global number
    code = frame.f_code.co_filename
    file = files.get(code)
    if file is None:
        file = files[code] = code.rpartition("/workbench/")[2] if "/workbench/" in code else ""
    if event != "call" or not file or not frame.f_code.co_flags & 1:  # the body of a module or a class
        return None
    if number is None or number[0] != os.getpid():
        path = os.environ["HOUSE_TRACE"] + "." + str(os.getpid())
        number = os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        last.clear()
    thread = threading.get_ident()
    if last.get(thread) != file:
        last[thread] = file
        os.write(number[1], f"{time.monotonic()} {file}\\n".encode())
if "HOUSE_TRACE" in os.environ:
    sys.settrace(trace)
    threading.settrace(trace)
"""
DRIVER = """
import json, sys, time
from IPython.terminal.interactiveshell import TerminalInteractiveShell
import dask.array as da
from workbench import place, spmd
shell, moments = TerminalInteractiveShell.instance(), []
def timed(name, request):
    begin = time.monotonic()
    request()
    moments.append((name, begin, time.monotonic()))
shell.run_line_magic("load_ext", "workbench")
timed("start", lambda: shell.run_line_magic("mpicluster", "start 4 --name house"))
try:
    shell.user_ns["X"] = X = place(da.ones((4000, 4), chunks=(1000, 4)))
    call = spmd(lambda comm, X: comm.allreduce(float(X.sum())))
    cell = lambda: shell.run_cell_magic("mpi", "X", "print(comm.allreduce(len(X)))")
    call(X), call(X), cell(), cell()
    for _ in range(5):
        timed("call", lambda: call(X))
        time.sleep(0.3)
    for _ in range(3):
        timed("cell", cell)
        time.sleep(0.3)
    timed("number", lambda: time.sleep(2))
finally:
    timed("stop", lambda: shell.run_line_magic("mpicluster", "stop house"))
json.dump(moments, open(sys.argv[1], "w"))
"""


def modules() -> dict[str, ast.Module]:
    """Return the module trees of the package by their names."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def package_of(module: str) -> str:
    """Return the package of a module, for example ``launch``; a module at the top has none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else ""


def imports(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str, str]]:
    """Yield each import between packages: who imports, which module, and which of its names."""
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workbench"):
                for alias in node.names:
                    found = f"{node.module}.{alias.name}"
                    found = found if found in trees else str(node.module)
                    if package_of(found) != package_of(module):
                        yield module, found, alias.name


def counts() -> dict[str, int]:
    """Return the measures of the sources."""
    trees = modules()
    lines = {module: len(path_of(module).read_text().splitlines()) for module in trees}
    core = [module for module in trees if package_of(module) not in WINGS]
    doors = defaultdict(set)
    taken = set()
    for module, found, name in imports(trees):
        if package_of(found) and package_of(found) not in WINGS and found.count(".") > 1:
            doors[package_of(found)].add(found)
        if package_of(module) in WINGS and package_of(found) not in WINGS and found != "workbench":
            taken.add((found, name))
    for package, used in sorted(doors.items(), key=lambda item: -len(item[1])):
        print(f"  doors of {package}: {len(used)}  {' '.join(sorted(each.rpartition('.')[2] for each in used))}")
    private, sentences = 0, 0
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in PUBLIC:
                private += not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
            elif isinstance(node, ast.keyword) and node.arg == "match":
                sentences += 1
    return {
        "lines of the core": sum(lines[module] for module in core),
        "lines in all": sum(lines.values()),
        "modules of the core": len(core),
        "modules in all": len(trees),
        "doors above four, in all packages": sum(max(0, len(used) - 4) for used in doors.values()),
        "names that wings take from the core": len(taken),
        "private attributes that tests read": private,
        "sentences that tests match": sentences,
    }


def path_of(module: str) -> Path:
    """Return the file of a module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def walks() -> dict[str, int]:
    """Return the numbers of files of each walk, in a traced cluster."""
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        trace, moments = Path(folder, "trace"), Path(folder, "moments.json")
        Path(folder, "sitecustomize.py").write_text(TRACER)
        variables = {"PYTHONPATH": folder, "HOUSE_TRACE": str(trace), "JUPYTER_DATA_DIR": folder}
        command = [sys.executable, "-c", DRIVER, str(moments)]
        subprocess.run(command, env=os.environ | variables, check=True, stdout=sys.stderr, timeout=240)
        requests = json.loads(moments.read_text())
        steps = {}
        for path in Path(folder).glob("trace.*"):
            lines = [line.split() for line in path.read_text().splitlines()]
            steps[path.suffix] = [(float(moment), file) for moment, file in lines]
    ranks = [process for process, passed in steps.items() if any(file == "rank/world.py" for _, file in passed)]
    for process in ranks[1:]:  # the others do the same
        del steps[process]
    passed = defaultdict(list)
    for name, begin, end in requests:
        files = {file for process in steps.values() for moment, file in process if begin <= moment <= end}
        passed[name].append(files if name in {"number", "start", "stop"} else files - SAMPLING)
    # What all repetitions pass belongs to the request.
    return {f"files of a {name}": len(set.intersection(*files)) for name, files in passed.items()}


def main() -> int:
    """Print all measures; return 1 if one is above its limit."""
    measured = counts() | walks()
    print(f"{'':42}{'now':>8}{'limit':>8}{'target':>8}")
    for name, (limit, target) in LIMITS.items():
        print(f"{name:42}{measured[name]:8}{limit:8}{target:8}{'  <- above' if measured[name] > limit else ''}")
    return int(any(measured[name] > limit for name, (limit, _) in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
