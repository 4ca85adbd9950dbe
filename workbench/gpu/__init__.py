"""GPUs: the devices of each rank, their load and memory, and whether MPI can send from their memory.

Doors: `devices`, `tensors`, `visible`.
"""
