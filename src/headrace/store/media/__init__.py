"""What files and databases are on: this machine, or memory that can lose power."""
