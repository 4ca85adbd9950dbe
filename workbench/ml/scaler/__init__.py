"""Standardization of features."""
