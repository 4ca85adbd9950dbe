"""What `%mpicluster` and the command `workbench` share: their words, and what these do.

Doors: `actions`, `magics`, `parse`, `subcommand`, `table`.
"""
