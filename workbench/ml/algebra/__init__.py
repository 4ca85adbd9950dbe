"""Linear algebra of many rows: sums over parts, and the equations and triangles that are made of these."""
