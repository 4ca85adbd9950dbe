"""An IPython without a prompt, in which the workbench's magics are typed."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@contextmanager
def ipython() -> Iterator[InteractiveShell]:
    """Give a shell with the extension loaded."""
    # Its history would be a database that remains open.
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.extension_manager.load_extension("workbench")
    try:
        # Python's own prompt, and translations of texts, leave a `_`, and IPython sets none beside it.
        with mock.patch.dict(vars(builtins)):
            vars(builtins).pop("_", None)
            yield shell
    finally:
        shell.extension_manager.unload_extension("workbench")
        InteractiveShell.clear_instance()
