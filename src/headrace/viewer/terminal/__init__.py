"""What is shown on a terminal: the live view, its plain lines, and what `headrace inspect` prints."""
