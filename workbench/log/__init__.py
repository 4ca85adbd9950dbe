"""The log at level debug, and foreign text made safe to show."""
