"""The session of a user in this process: the notebook, the current client, the connection to the head, its moves.

Doors: `clients`, `current`, `head_client`, `moves`.
"""
