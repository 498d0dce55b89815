"""Benchmarks that ship with a checkout: each judges one room against simpler ways to do its job."""
