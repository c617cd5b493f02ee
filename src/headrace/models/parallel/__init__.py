"""One pass over a micro-batch, made by several processes together."""
