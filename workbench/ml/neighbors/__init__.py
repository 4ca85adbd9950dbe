"""The search for nearest neighbours."""
