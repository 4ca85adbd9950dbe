"""The dashboard of a cluster: a Panel app that polls the head twice per second and draws the metrics of all ranks."""

PREFIX = "WORKBENCH_DASHBOARD_PREFIX"
"""Environment variable with the path of the dashboard in the browser, which may be secret, unlike a command line."""
