"""How blocks get to their ranks and stay there: one block per rank."""
