"""The research log: one JSON line an event, appended at once, so that nothing is lost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies.files import to_json

SCHEMA_VERSION = 1


class ResearchLog:
    """Appends events to a JSONL file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def __call__(self, event: str, content: Mapping[str, Any]) -> None:
        """Writes one event with time and load of the machine."""
        line = {
            "event": event,
            "schema_version": SCHEMA_VERSION,
            "time_s": time.time(),
            "load_average": list(os.getloadavg()),
            **content,
        }
        text = json.dumps(json.loads(to_json(line)))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
