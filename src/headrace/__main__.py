"""`python -m headrace`: the command, where it is not installed."""

from headrace.cli.main import entry

if __name__ == "__main__":
    entry()
