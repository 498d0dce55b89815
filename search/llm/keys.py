"""Which environment variables a provider's key is missing from, as LiteLLM knows its providers.

LiteLLM takes seconds to import and prints as it likes, so it is asked in a process of its own. It
is asked about names alone: nothing is sent anywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

START_S = 120.0
"""Longest import of LiteLLM: 4.4 s of CPU, more on a busy machine (measured)."""
ROOT = Path(__file__).resolve().parents[2]
SUFFIX = "_API_KEY"
"""Other variables that LiteLLM lists (regions, addresses, roles) have defaults or other sources."""


def missing_keys(model: str) -> list[str]:
    """The variables of which one must hold the key of a model's provider; empty where one does.

    Empty, too, where LiteLLM does not know the provider or its models need no key.
    """
    provider = model.partition("/")[0].upper().replace("-", "_")
    if os.environ.get(f"{provider}{SUFFIX}"):
        return []
    try:
        told = subprocess.run(
            [sys.executable, "-m", "search.llm.keys", model],
            cwd=ROOT,
            env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=START_S,
            check=True,
        ).stdout
        found: list[str] = json.loads(told.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError):
        return []  # the call itself will say what is wrong
    return found


def main() -> None:
    """Prints the missing variables of the model that is named, as JSON on the last line."""
    import litellm

    missing = litellm.validate_environment(sys.argv[1])["missing_keys"]
    print("\n" + json.dumps([name for name in missing if name.endswith(SUFFIX)]))


if __name__ == "__main__":
    main()
