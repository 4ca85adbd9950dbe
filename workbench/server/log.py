"""The log of the server extension, a part of the log of Jupyter's server."""

from __future__ import annotations

import logging

logger = logging.getLogger("WorkbenchExtension")
"""Named for its class: so Jupyter gives this logger the handlers, the format and the level of the server's log."""
