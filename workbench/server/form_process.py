"""``python -m workbench.server.form_process``: print the contents of the start form as JSON.

A separate process, since it loads dask-jobqueue and queries schedulers.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from workbench import config
from workbench.commands.verb import Argument
from workbench.errors import WorkbenchError
from workbench.launch.allocation import current_allocation
from workbench.launch.launchers import COMMANDS, answers, launcher
from workbench.launch.mpiexec import available_cores
from workbench.launch.options import GROUPS, SCHEDULERS
from workbench.log import debug_log
from workbench.server.form_fields import Field, arguments


def form() -> dict[str, Any]:
    """Return schedulers, fields and the cores of this host."""
    available = {"local": True, "here": _is_inside_of_a_job()} | {name: answers(name) for name in COMMANDS}
    default = config.get("scheduler")
    if default == "auto":
        default = next((name for name in COMMANDS if available[name]), "local")
    fields = [Field.of(argument).describe() | {"choices": _choices(argument)} for argument in arguments()]
    return {
        "schedulers": [{"name": name, "there": available[name], "batch": launcher(name).batch} for name in SCHEDULERS],
        "default_scheduler": default,
        "fields": fields,
        "groups": list(GROUPS),
        "cores": available_cores(),
    }


def _is_inside_of_a_job() -> bool:
    with suppress(WorkbenchError):
        return current_allocation() is not None
    return False


def _choices(argument: Argument) -> list[str]:
    # the check of the form reports a preset that cannot be read
    with suppress(WorkbenchError):
        return list(argument.values())
    return []


if __name__ == "__main__":
    debug_log.set_up()
    json.dump(form(), sys.stdout)
