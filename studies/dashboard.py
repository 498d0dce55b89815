"""Dashboard: optuna-dashboard on our storage, with the constraints of Optuna 5 understood.

optuna-dashboard 0.21 looks for constraints where Optuna 4 kept them and picks the best trial
without them. Both are told by the storage, so the storage that it is given answers as it expects.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specs.errors import InputError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

TRIED = "0.21."
"""Versions of optuna-dashboard that the storage was tried with."""
LOOPBACK = "127.0.0.1"


def installed_version() -> str:
    """The version of optuna-dashboard.

    Raises:
        InputError: it is not installed.
    """
    try:
        return metadata.version("optuna-dashboard")
    except metadata.PackageNotFoundError:
        raise InputError(
            "optuna-dashboard is not installed; run: pip install -e '.[dashboard]'."
        ) from None


def untried(version: str) -> str | None:
    """A sentence where this version of optuna-dashboard is not one that was tried."""
    if version.startswith(TRIED):
        return None
    return (
        f"optuna-dashboard {version} was not tried with foretune ({TRIED}x was); if it draws "
        "refused trials as feasible, install that version."
    )


def with_constraints(storage: BaseStorage) -> BaseStorage:
    """The storage, answering optuna-dashboard as Optuna 4 did: what is stored stays as it is.

    Trials carry the list ``constraints`` beside ``constraints:<name>``, and the best trial is the
    best that fits; where none fits, the one that violates least.
    """
    stored_trials: Callable[..., list[FrozenTrial]] = storage.get_all_trials

    def get_all_trials(study_id: int, *args: Any, **options: Any) -> list[FrozenTrial]:
        return [_legacy(trial) for trial in stored_trials(study_id, *args, **options)]

    def get_best_trial(study_id: int) -> FrozenTrial:
        from optuna.study import StudyDirection
        from optuna.trial import TrialState

        trials = get_all_trials(study_id, deepcopy=False, states=(TrialState.COMPLETE,))
        if not trials:
            raise ValueError("no trial is complete yet")
        sign = -1.0 if storage.get_study_directions(study_id)[0] == StudyDirection.MAXIMIZE else 1.0

        def worth(trial: FrozenTrial) -> tuple[float, float]:
            violation = sum(max(value, 0.0) for value in trial.constraints.values())
            return violation, sign * float(trial.value or 0.0)

        return min(trials, key=worth)

    # Replaced on this one object: the dashboard asks nothing else that constraints touch.
    storage.get_all_trials = get_all_trials  # type: ignore[method-assign]
    storage.get_best_trial = get_best_trial  # type: ignore[method-assign]
    return storage


def _legacy(trial: FrozenTrial) -> FrozenTrial:
    constraints = trial.constraints
    if not constraints or "constraints" in trial.system_attrs:
        return trial
    shown = copy.copy(trial)
    values = [constraints[name] for name in sorted(constraints)]
    shown._system_attrs = {**trial.system_attrs, "constraints": values}
    return shown


def application(storage: BaseStorage, artifacts: Path) -> Any:
    """The WSGI application of optuna-dashboard on this storage."""
    from optuna.artifacts import FileSystemArtifactStore
    from optuna_dashboard._app import create_app

    artifacts.mkdir(parents=True, exist_ok=True)
    store = FileSystemArtifactStore(str(artifacts))
    return create_app(with_constraints(storage), artifact_store=store)


def serve(app: Any, port: int, ready: Callable[[str], None]) -> None:
    """Serves the application on the loopback interface until it is interrupted.

    Args:
        app: from ``application``.
        port: 0 for any free one.
        ready: is told the address when requests are answered.

    Raises:
        InputError: the port is taken.
    """
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

        def server_bind(self) -> None:
            # Without asking DNS for the name of this machine, as the base class does.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = LOOPBACK, self.server_address[1]
            self.setup_environ()

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Says nothing a request."""

    try:
        server = Server((LOOPBACK, port), Quiet)
    except OSError as error:
        raise InputError(
            f"port {port} cannot be used ({error.strerror}); name another with --port."
        ) from None
    server.set_app(app)
    with server:
        ready(f"http://{LOOPBACK}:{server.server_port}/dashboard/")
        server.serve_forever()
