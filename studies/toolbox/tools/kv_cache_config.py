"""The kind of KV cache."""

from __future__ import annotations

from studies.toolbox.runtime import Observation, Runtime
from studies.toolbox.tools.base import Code, Proof, Tool


class KvCacheConfig(Tool):
    """``static`` holds every token from the start: shapes never change, which graphs need."""

    name = "kv_cache_config"
    settings = ("static",)

    def apply(self, runtime: Runtime, setting: str) -> None:
        """Makes the loop build this cache."""
        runtime.cache = setting

    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:  # noqa: ARG002
        """Another cache class, with room in advance."""
        changed = after.cache != before.cache and after.cache_tokens is not None
        return Proof(changed, f"{after.cache} with room for {after.cache_tokens} tokens")

    def code(self, setting: str) -> Code:
        """An argument of the loop."""
        return Code(arguments={"cache": f'"{setting}"'})
