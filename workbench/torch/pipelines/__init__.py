"""Pipelines: a module is cut into stages, each stage trains on its ranks, and replicas of the pipeline share a batch."""
