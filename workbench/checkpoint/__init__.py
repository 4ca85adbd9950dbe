"""Checkpoints: placed collections and plain objects in a folder, which outlive their cluster, and what a cluster keeps.

Doors: `client`, `folder`, `following`, `head`, `kept`, `protocol`.
"""
