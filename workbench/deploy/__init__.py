"""A cluster from request to end: its record, its folder, its job, its connection.

Doors: `certificates`, `connection`, `display`, `ended`, `ending_loop`, `folder`, `job`, `job_spec`, `logs`, `progress`,
`record`, `registry`, `signature`, `start`, `stop`, `world`.
"""
