"""A cluster from request to end: its record, its job, its connection, its files.

Doors: `certificates`, `connection`, `display`, `ended`, `ending_loop`, `job_spec`, `jobs`, `logs`, `progress`,
`record`, `registry`, `request`, `signature`, `start`, `stop`, `world`.
"""
