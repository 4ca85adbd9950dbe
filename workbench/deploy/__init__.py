"""A cluster from request to end: its record, its job, its connection, its files."""
