"""The dashboard of a cluster: a Panel app that polls the head twice per second and draws the metrics of all ranks."""
