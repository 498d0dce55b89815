"""What optuna-dashboard shows of a study beside its trials: notes, graphs and artifacts.

It reads them from attributes of the study, in the form of optuna-dashboard 0.21. They are written
here, without that package: a study made where it is not installed is as readable as any other.
"""

from __future__ import annotations

import json
import mimetypes
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from studies.files import to_json
from studies.pictures.style import Picture

if TYPE_CHECKING:
    from optuna import Study

PIECE = 2045
"""Most characters of an attribute: optuna-dashboard joins the pieces of longer ones."""


class Board:
    """The attributes of one study that optuna-dashboard reads; writes only what has changed."""

    def __init__(self, study: Study, artifacts: Path) -> None:
        """``artifacts`` is the folder of the artifact store, made when needed."""
        self._storage = study._storage
        self._study_id = study._study_id
        self._trial_ids = {t.number: t._trial_id for t in study.get_trials(deepcopy=False)}
        self._held = self._storage.get_study_system_attrs(self._study_id)
        self._artifacts = artifacts

    def note(self, body: str, trial: int | None = None) -> None:
        """The Markdown note of the study, or of the trial of this number."""
        owner = "" if trial is None else f"{self._trial_ids[trial]}:"
        if self._put_pieces(f"dashboard:{owner}note_str:", body):
            version = f"dashboard:{owner}note_ver"
            self._put(version, int(self._held.get(version, 0)) + 1)

    def graph(self, name: str, picture: Picture) -> None:
        """A Plotly figure of the study; ``name`` is letters, digits, ``-`` and ``_``."""
        self._put_pieces(f"dashboard:plot_data:{name}:", json.dumps(json.loads(to_json(picture))))

    def artifact(self, path: Path, trial: int | None = None) -> None:
        """A copy of a file; a file of the same name replaces the one before."""
        from optuna.artifacts import ArtifactMeta, FileSystemArtifactStore

        owner = "artifacts:" if trial is None else f"dashboard:artifacts:{self._trial_ids[trial]}:"
        name = f"{self._study_id}/{owner}{path.name}"
        identity = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
        kind, encoding = mimetypes.guess_type(path.name)
        kind = "text/plain" if path.suffix in (".yaml", ".sh") else kind
        meta = ArtifactMeta(identity, path.name, kind or "application/octet-stream", encoding)
        self._artifacts.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as content:
            FileSystemArtifactStore(str(self._artifacts)).write(identity, content)
        self._put(f"{owner}{identity}", json.dumps(asdict(meta)))

    def _put_pieces(self, prefix: str, text: str) -> bool:
        """Writes a text in pieces and empties those of a longer one before; whether it is new."""
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        held = [key for key in self._held if key.startswith(prefix)]
        pieces += [""] * (len(held) - len(pieces))
        written = [self._put(f"{prefix}{i}", piece) for i, piece in enumerate(pieces)]
        return any(written)

    def _put(self, key: str, value: str | int) -> bool:
        if self._held.get(key) == value:
            return False
        self._storage.set_study_system_attr(self._study_id, key, value)
        self._held[key] = value
        return True


def artifact_folder(storage: Path | None, out: Path) -> Path:
    """Where artifacts lie: beside the file of the storage, or in ``out`` where it is a server."""
    return (storage.parent if storage is not None else out) / "artifacts"
