"""Workers in processes of their own on this machine: spawned, spoken to over Unix sockets, arrays in shared memory."""
