"""K-means."""
