"""The communicator of mpi4py, counted and able to be ended; the way of blocks to C and C++, and to Heat.

Doors: `call_state`, `comm_world`, `communicator`, `communicator_cache`, `context`, `counters`, `derived`, `polling`.
"""
