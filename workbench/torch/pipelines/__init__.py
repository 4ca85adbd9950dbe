"""Pipelines: stages of a module train on different ranks, and replicas of the pipeline share a batch."""
