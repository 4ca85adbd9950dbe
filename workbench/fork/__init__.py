"""Start ranks by fork: one process of each node, the template, imports once, and the ranks are copies of it.

Doors: `become`, `template`.
"""
