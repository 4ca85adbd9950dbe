"""How long tests wait for what should happen immediately: one place, and one variable for slow machines.

A test waits for an event. The deadline is not how long the event may take, but when a test gives up on a machine that
has other work: it is generous, and no test passes or fails by a shorter one.
"""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("WORKBENCH_TEST_PATIENCE", "1"))
"""Set ``WORKBENCH_TEST_PATIENCE=3`` on a machine that is three times as slow, or as busy, as two cores at rest."""

DEADLINE = 60.0 * FACTOR
"""Seconds until a test gives up to wait for anything."""
