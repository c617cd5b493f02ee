"""`headrace init`: a folder to begin with, perhaps from another trainer's settings."""
