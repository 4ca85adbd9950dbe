"""The log of the server extension, a part of the log of Jupyter's server."""

from __future__ import annotations

import logging

logger = logging.getLogger("WorkbenchExtension")
"""Has the name of the extension's class, so that Jupyter sets the handlers, format and level of the server's log."""
