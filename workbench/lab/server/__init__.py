"""The part of the workbench that runs in a Jupyter server: clusters and their dashboards under Jupyter's login."""
