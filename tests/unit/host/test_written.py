"""The output of a call is found in the log of its process, without that of tasks and messages of Dask."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import ctypes, json, os, subprocess, sys, threading
from workbench.host import output
from workbench.host.output import Written

output.keep_on()
print("before")

def printed(text, name):
    thread = threading.Thread(target=print, args=(text,), kwargs={"flush": True}, name=name)
    thread.start()
    thread.join()

def write():
    print("a print", flush=True)
    printed("a thread", "Thread-1")
    printed("a task", "0-Dask-Default-Threads-7")
    subprocess.run(["echo", "a program"])
    os.write(2, b"2026-11-27 22:49:16,123 - distributed.worker - WARNING - a message\\n")
    print("\\xe9", end="")

answers = []
for options, limit in (({}, 1000), ({"but_prints": True}, 1000), ({}, 9)):
    written = Written(**options)
    write()
    answers.append(written.take(limit))
answers.append(Written().take(9))

written = Written()
libc = ctypes.CDLL(None)
libc.printf(b"progress 10%%")
answers.append(written.take(1000))

written = Written()
tasks = threading.Thread(target=lambda: [print("task", file=sys.stderr) for _ in range(5000)], name="dask-worker")
tasks.start()
while tasks.is_alive():
    print("call", flush=True)
tasks.join()
answers.append(set(written.take(10**9)[0].split()) == {"call"})
with open(sys.argv[1], "w") as file:
    json.dump(answers, file)
"""


def test_output_of_a_call_is_what_its_threads_and_programs_have_written(tmp_path):
    answers = tmp_path / "answers.json"
    with open(tmp_path / "log", "ab") as log:
        subprocess.run([sys.executable, "-c", PROGRAM, str(answers)], check=True, stdout=log, stderr=log)

    assert json.loads(answers.read_text()) == [
        ["a print\na thread\na program\n\xe9", 0],
        ["a program\n", 0],
        ["a print\na", 87],
        ["", 0],
        ["progress 10%", 0],
        True,
    ]
