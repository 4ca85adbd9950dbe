"""What every rank does, in a browser: a Panel app that asks the head twice a second and draws what it tells."""
