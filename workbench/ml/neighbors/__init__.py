"""Nearest-neighbor search."""
