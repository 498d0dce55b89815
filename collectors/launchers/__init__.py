"""Launchers: carry a command to the nodes of a job, watch it, and say how it ended."""
