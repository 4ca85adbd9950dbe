"""Functions and broadcasts on all ranks or on none: in the notebook, on the head and on the ranks.

Doors: `api`, `broadcast`, `channel`, `head`, `operation`, `process_state`, `protocol`, `rank`, `rank_call`,
`request`, `serialize`.
"""
