"""A cluster from request to end: its record, its folder, its job, its connection.

Doors: `connection`, `display`, `ended`, `ending_loop`, `folder`, `job`, `job_spec`, `logs`, `record`, `registry`,
`start`, `stop`, `world`.
"""
