"""How blocks get to their ranks and stay there: one block per rank.

Doors: `from_results`, `head`, `in_use`, `inside`, `pinning`, `place`, `rows`, `schema`, `sources`.
"""
