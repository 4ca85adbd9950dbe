"""A log at level debug, and texts of others made safe to show."""
