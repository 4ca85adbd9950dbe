"""The host of a process: files of one user, folders of a node, the end of processes, ports, logs."""
