"""Checkpoints: placed collections and plain objects in a folder, which outlive their cluster.

Doors: `client`, `folder`.
"""
