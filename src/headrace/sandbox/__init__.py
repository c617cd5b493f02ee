"""Where code runs that may do its worst: walled off by namespaces, held by limits, watched by a process apart."""
