"""Rows of the table as a trainer takes them."""
