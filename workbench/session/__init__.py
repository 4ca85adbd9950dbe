"""What code of a user works with in this process: its notebook, its client, and the head as the client reaches it."""
