"""Workers as actors of a Ray cluster, on this machine or many. Ray is imported by the files here alone."""
