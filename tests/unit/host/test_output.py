"""A log on a full disk loses what does not fit, and raises no error in the code that writes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.deploy import logs
from workbench.host import output

FULL = Path("/dev/full")


def test_a_log_on_a_full_disk_takes_each_write():
    with output.append(FULL) as log:
        for size in (1, 1 << 20):
            log.write(bytes(size))
            log.flush()


def test_print_of_a_process_whose_output_is_a_log_on_a_full_disk_raises_no_error():
    program = (
        "import sys; from workbench.host import output; output.keep_on(); print('\\u20ac' * 100000, flush=True); "
        "print('a', file=sys.stderr); import logging; logging.basicConfig(); logging.error('b'); sys.exit(7)"
    )
    with open(FULL, "wb") as full:
        assert subprocess.run([sys.executable, "-c", program], check=False, stdout=full, stderr=full).returncode == 7


@pytest.mark.parametrize("unbuffered", [True, False])
def test_a_line_is_in_the_log_as_early_as_without_the_workbench(tmp_path, unbuffered):
    program = (
        "import os, sys; from workbench.host import output; output.keep_on(); print('\u20ac'); "
        "print('b', file=sys.stderr); os._exit(0)"
    )
    variables = {**os.environ, "PYTHONUNBUFFERED": "1" * unbuffered}
    written = [tmp_path / name for name in ("stdout", "stderr")]
    with open(written[0], "wb") as out, open(written[1], "wb") as err:
        subprocess.run([sys.executable, "-c", program], check=True, stdout=out, stderr=err, env=variables)
    assert [path.read_text(encoding="utf-8") for path in written] == ["\u20ac\n" * unbuffered, "b\n"]


@pytest.mark.parametrize("number", output.FULL)
def test_a_log_for_which_the_disk_has_no_room_is_not_a_condition(tmp_path, monkeypatch, number):
    def full(*_):
        raise OSError(number, os.strerror(number))

    for name in ("make_private", "opener"):
        with monkeypatch.context() as patched:
            patched.setattr(logs, name, full)
            with logs.append(tmp_path / "new" / "world-0.log") as log:
                log.write(b"text")


def test_another_error_of_a_log_is_reported(tmp_path):
    with pytest.raises(NotADirectoryError) as error:
        logs.append(Path(__file__) / "world-0.log")
    assert error.value.errno == errno.ENOTDIR
