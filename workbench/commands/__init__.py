"""What `%mpicluster` and the command `workbench` share: their words, and what these do.

Doors: `actions`, `completion`, `format`, `magics`, `parse`, `subcommand`, `table`.
"""
