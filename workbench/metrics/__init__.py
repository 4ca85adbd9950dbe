"""Metrics of every rank: counted and sampled on the ranks, collected in the head, read by dashboards and notebooks.

Doors: `activity`, `head`, `magics`, `profile`, `profile_frame`, `report`, `sampler`, `schema`, `tables`, `training`,
`update`.
"""
