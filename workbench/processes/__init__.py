"""Processes: their identity, their end with their parent, the files and the ports that they may have."""
