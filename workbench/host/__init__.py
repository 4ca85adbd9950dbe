"""The host of a process: files of one user, folders of a node, the end of processes, ports, logs.

Doors: `debug_log`, `files`, `guard`, `network`, `node_dirs`, `output`, `parent_death`, `processes`, `stub`.
"""
