"""How a cluster of a test has ended."""

from __future__ import annotations

from workbench.deploy import ended
from workbench.deploy.record import Record


def end_of(record: Record) -> tuple[str, str]:
    """Return the stored state and reason of the last cluster of a name, which must be this one."""
    its = ended.last(record.name)
    assert its is not None, f"nothing is kept of the end of {record.name}"
    assert its.id == record.id
    return its.state, its.reason
