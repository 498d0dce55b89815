"""Keys and passwords are taken out of everything that a model or its server says.

What comes back from a server is foreign: it may echo the key that it was sent. Every text passes
here before it is parsed, stored, logged or shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

HIDDEN = "***"
SHORTEST = 6
"""Shorter values are not hidden: they would take ordinary words out of texts."""
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_KEY_SHAPES = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|gho)[-_][A-Za-z0-9_\-]{8,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?i:bearer\s+)[A-Za-z0-9._~+/\-]{8,}=*|\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-.]{10,}"
)


class Redactor:
    """Hides known secrets and what looks like a key."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret.strip() for secret in secrets}
        longest = sorted((s for s in known if len(s) >= SHORTEST), key=lambda s: (-len(s), s))
        self._known = re.compile("|".join(map(re.escape, longest))) if longest else None

    @classmethod
    def of_environment(cls, *urls: str | None) -> Redactor:
        """Hides the values of environment variables named like secrets and passwords in URLs."""
        secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name)]
        for url in filter(None, urls):
            parts = urlsplit(url)
            secrets += [part for part in (parts.password, parts.username) if part]
            secrets += [unquote(part) for part in (parts.password, parts.username) if part]
            secrets += [pair.partition("=")[2] for pair in parts.query.split("&")]
        return cls(secrets)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _KEY_SHAPES.sub(HIDDEN, text)

    def deeply(self, value: Any) -> Any:
        """JSON without secrets, keys of objects included."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(str(key)): self.deeply(held) for key, held in value.items()}
        if isinstance(value, list | tuple):
            return [self.deeply(held) for held in value]
        return value
