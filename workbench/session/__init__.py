"""The session of a user in this process: the notebook, the current client, and the connection to the head.

Doors: `clients`, `current`, `head_client`.
"""
