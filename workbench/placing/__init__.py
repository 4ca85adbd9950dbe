"""How blocks get to their ranks and stay there: the parts of `workbench.placement`."""
