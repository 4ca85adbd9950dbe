"""What the first process of a cluster's job runs: scheduler, world, record, lease."""
