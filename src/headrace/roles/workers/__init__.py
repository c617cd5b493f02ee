"""The classes that worker processes run: each hosts what a spec, plain data, tells it to build."""
