"""Starts SGLang, as the package index has it, on a machine without a GPU. Imports nothing of Headrace."""
