"""No request of this process follows a redirect: a study goes to the address that was named, alone.

LiteLLM and OpenAI's SDK have clients of several kinds, and most of them follow a redirect to any
host with the whole request. What they share is httpx, or its successor httpx2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import httpx

CLIENTS: list[Any] = [httpx.Client, httpx.AsyncClient]
try:
    import httpx2
except ImportError:  # an SDK of OpenAI that still uses httpx
    pass
else:
    CLIENTS += [httpx2.Client, httpx2.AsyncClient]

REDIRECTED = (
    "the server redirects to another address, and a study is sent to no other than the one named"
)


refused: list[str] = []
"""Addresses that blocking clients were redirected to and did not go to, in order."""


@cache
def refuse_redirects() -> None:
    """From now on no client of this process follows a redirect, whatever it was told."""

    def refusing(send: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(send)
        def sent(client: Any, request: Any, **options: Any) -> Any:
            answer = send(client, request, **{**options, "follow_redirects": False})
            if getattr(answer, "has_redirect_location", False):
                refused.append(answer.headers["location"])
            return answer

        return sent

    for kind in CLIENTS:
        kind.send = refusing(kind.send)
