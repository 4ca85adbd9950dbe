"""The namespaces of cells on a rank: one for each notebook, and one that all notebooks share.

The engine enters the namespace that a message names before the engine handles the message. Meanwhile the namespace is
the module ``__main__`` of this process, where pickle looks for classes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SHARED = ""
"""Name of the namespace that all notebooks share. Messages without a name use this namespace."""
FIELD = "workbench-namespace"
"""Field of the metadata of messages to engines: the name of the namespace."""

# The values of the last cells, which the hook for displays keeps too.
_LAST = "_", "__", "___"

_modules: dict[str, ModuleType] = {}
_variables: dict[str, dict[ContextVar[Any], Any]] = {}
# The namespace of the message that the engine handles, and the ends of the last messages by namespace.
_in_use: str | None = None
_used: dict[str, float] = {}


def enter(shell: Any, name: str) -> bool:
    """Let the IPython of this process use a namespace, which begins empty; return whether the namespace is new.

    On the main thread, between cells.
    """
    global _in_use  # noqa: PLW0603
    _in_use = name
    _modules.setdefault(SHARED, shell.user_module)
    is_new = name not in _modules
    if is_new:
        _modules[name], _ = shell.prepare_user_module()
    module = _modules[name]
    if module is not shell.user_module:
        shell.user_module, shell.user_ns = module, vars(module)
        sys.modules["__main__"] = module
        # The values of the cells of one notebook, not of all.
        shell.history_manager.output_hist = shell.user_ns.setdefault("_oh", {})
        for each in _LAST:
            setattr(shell.displayhook, each, shell.user_ns.setdefault(each, ""))
    if is_new:
        shell.init_user_ns()
    return is_new


def leave() -> None:
    """Note the end of a message to the engine."""
    global _in_use  # noqa: PLW0603
    if _in_use is not None:
        _used[_in_use] = time.monotonic()
        _in_use = None


def unused(name: str) -> float:
    """Return the seconds since the last message that names a namespace; infinity if there was none. Thread-safe."""
    return 0.0 if name == _in_use else time.monotonic() - _used.get(name, -math.inf)


def run(name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function with the context variables that earlier calls for this namespace have set, as `numpy.seterr`."""
    context = copy_context()
    kept = _variables.setdefault(name, {})
    for variable, value in kept.items():
        context.run(variable.set, value)
    before = dict(context)
    try:
        return context.run(function, *args, **kwargs)
    finally:
        # Not all: the engine sets variables for each message.
        kept.update((variable, value) for variable, value in context.items() if before.get(variable, kept) is not value)


def names(name: str) -> dict[str, Any]:
    """Return the content of a namespace; an empty dict if no cell has used the namespace."""
    return vars(_modules[name]) if name in _modules else {}


def forget(name: str) -> None:
    """Delete the names of a notebook that has gone, so that their values are freed. On the main thread."""
    _variables.pop(name, None)
    _used.pop(name, None)
    if (module := _modules.pop(name, None)) is not None:
        from IPython.core.getipython import get_ipython

        enter(get_ipython(), SHARED)
        vars(module).clear()
