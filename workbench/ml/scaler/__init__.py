"""Standardisation of features."""
