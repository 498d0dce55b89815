"""Processes that are forked from one that has imported everything.

A process of Python imports for two seconds of CPU time before it does anything here. Tests that
start many take them from a ``Nursery``: each is a process of its own, with its own arguments,
environment, folder, files and process group, and can be killed as any other.

It ends with the process that asked for it. A shell starts one with ``python -S tests/warm.py SOCKET
ARGUMENTS``, where ARGUMENTS are those of ``python``: ``-m MODULE ...``, ``-c CODE ...`` or
``FILE ...``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

COMMANDS = (
    "foretune", "optuna", "pandas", "plotly.graph_objects", "plotly.io", "scipy.stats",
    "sklearn.gaussian_process", "sqlalchemy", "search.pool_sampler", "studies.cli.main",
    "studies.measured_loop", "studies.plan.run", "studies.real_runs", "studies.report.report",
    "studies.result", "studies.showcase", "studies.training", "studies.worker",
    "surrogate.validation",
)  # fmt: skip
"""What commands import; one that needs more imports it itself."""
LANGUAGE_MODELS = ("dspy", "litellm", "litellm.main", "search.llm.program", "search.llm.worker")
"""What a process that talks to a model imports."""
TORCH = (
    "studies.toolbox.worker", "torch", "transformers.generation",
    "transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2",
)  # fmt: skip
"""What a worker of the toolbox imports."""
KILLED = 128 + signal.SIGKILL


def serve(path: str, modules: Sequence[str]) -> None:
    """Forks a process for every client until it is ended or its parent has ended."""
    import importlib

    parent = os.getppid()
    for name in modules:
        importlib.import_module(name)
    if "foretune" in modules:
        _warm_commands()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    server.settimeout(5.0)
    while os.getppid() == parent:
        try:
            client, _ = server.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            server.close()
            _become(client)
        client.close()


def _warm_commands() -> None:
    """Loads what every command of foretune loads."""
    import importlib
    import pkgutil

    import optuna

    import studies.cli
    from surrogate.learned import shipped
    from tests.unsynchronised import wait_for_no_disk

    wait_for_no_disk()

    for module in pkgutil.iter_modules(studies.cli.__path__):
        importlib.import_module(f"studies.cli.{module.name}")
    shipped()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.storages.RDBStorage("sqlite:///:memory:")  # imports what opens a database


def _become(client: socket.socket) -> None:
    """Turns this process into the one that a client asks for, and ends with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    data, files, _, _ = socket.recv_fds(client, 1 << 16, 3)
    while part := client.recv(1 << 16):
        data += part
    asked = json.loads(data)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    client.sendall(os.getpid().to_bytes(4, "little"))
    threading.Thread(target=_end_with, args=(client,), daemon=True).start()
    code = 1
    try:
        _run(asked["arguments"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        client.sendall(bytes([code]))
        os._exit(code)


def _end_with(client: socket.socket) -> None:
    """Kills this process and what it started once who asked for it has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
    closed = select.poll()
    closed.register(client, 0)  # tells of a hang-up alone
    closed.poll()
    os.killpg(0, signal.SIGKILL)


def _run(arguments: list[str]) -> None:
    """Runs what ``python`` would run with these arguments."""
    import runpy

    if arguments[0] == "-u":  # as torchrun starts its ranks
        arguments = arguments[1:]
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


def ask(
    path: str, arguments: list[str], folder: str, files: list[int], **changed: str
) -> socket.socket:
    """The connection to a new process in a folder; ``changed`` are variables of its environment.

    ``files`` are its standard input, output and error.
    """
    asked = {"arguments": arguments, "folder": folder, "environment": {**os.environ, **changed}}
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    data = json.dumps(asked).encode()
    sent = socket.send_fds(server, [data], files)
    server.sendall(data[sent:])
    server.shutdown(socket.SHUT_WR)
    return server


def pid_of(server: socket.socket) -> int:
    """The process at the other end of a new connection."""
    data = b""
    while len(data) < 4 and (part := server.recv(4 - len(data))):
        data += part
    return int.from_bytes(data, "little")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve(sys.argv[2], sys.argv[3:]))
    with ask(sys.argv[1], sys.argv[2:], str(Path.cwd()), [0, 1, 2]) as connection:
        pid_of(connection)
        answer = connection.recv(1)
    sys.exit(answer[0] if answer else KILLED)
