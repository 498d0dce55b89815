"""Primus experiment YAML: read, and written so that it reproduces a config."""

from specs.formats.primus.reader import is_primus, read_primus
from specs.formats.primus.writer import overlay, write_experiment, write_overlay

__all__ = ["is_primus", "overlay", "read_primus", "write_experiment", "write_overlay"]
