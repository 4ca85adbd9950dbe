"""What every rank does, in a browser: a Panel app that polls the head twice a second and draws the answers."""

PREFIX = "WORKBENCH_DASHBOARD_PREFIX"
"""Variable with the path of the dashboard in the browser, which may be secret: everybody can read command lines."""
