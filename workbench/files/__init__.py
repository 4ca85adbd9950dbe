"""Files and folders: private, written as a whole, and those of a cluster on one node."""
