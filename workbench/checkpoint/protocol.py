"""The names of the operations of checkpoints between clients, the head and the ranks."""

# Of the head, for clients.
CHECKPOINT, KEEP = "workbench_checkpoint", "workbench_keep"
# Of the head, for ranks.
KEPT_BY_CALLS = "workbench_kept_by_calls"
# Of a rank, for the head.
STOP_SOON = "workbench_stop_soon"

KEPT_VERSIONS = 2
"""Number of versions of what a cluster keeps."""
