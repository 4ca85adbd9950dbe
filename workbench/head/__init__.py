"""What the first process of a cluster's job runs: scheduler, worlds, record, lease."""
