"""Principal components and singular vectors."""
