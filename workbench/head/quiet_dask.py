"""What Dask does many times a second for its own sake, less often: ranks need their cores."""

from __future__ import annotations

# What Dask has where nobody has set it, and what a rank and the head have then. The profiler alone takes 3 % of a core
# from a rank, computing or not, and of ranks that wait for each other the slowest tells how fast they are.
_LESS_OFTEN = {
    "distributed.worker.profile.interval": ("10ms", "100ms"),
    "distributed.admin.tick.interval": ("20ms", "200ms"),
}


def settings() -> dict[str, str]:
    """Return what to set in Dask's configuration, which `distributed` has filled: what is there by default only."""
    import dask

    return {key: less for key, (usual, less) in _LESS_OFTEN.items() if dask.config.get(key) == usual}
