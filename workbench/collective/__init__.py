"""Functions and broadcasts on all ranks or on none: in the notebook, on the head and on the ranks."""
