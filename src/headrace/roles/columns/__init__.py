"""The roles that fill columns, and whom they ask."""
