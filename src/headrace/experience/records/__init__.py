"""Groups as bytes, in the journal and out of it."""
