"""Profiler traces into operator rows and a breakdown of time."""
