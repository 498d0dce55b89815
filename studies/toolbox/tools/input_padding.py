"""Prompts padded to a multiple of tokens."""

from __future__ import annotations

from studies.toolbox.runtime import Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool


class InputPadding(Tool):
    """Pads on the left, with a mask; GEMMs get round shapes, attention loses its causal path."""

    name = "input_padding"
    settings = ("64", "128", "256")

    def apply(self, runtime: Runtime, setting: str) -> None:
        """Makes the loop pad."""
        runtime.pad_multiple = int(setting)

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:  # noqa: ARG002
        """More prompt tokens fed than before."""
        return Proof(
            after.fed_tokens != before.fed_tokens,
            f"{after.fed_tokens} prompt tokens are fed, {before.fed_tokens} without it",
        )

    def code(self, setting: str) -> Code:
        """An argument of the loop."""
        return Code(arguments={"pad_multiple": setting})
