# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of sessions: workers without a driver, and their end."""

import os
import time
from _socket import socket
from pathlib import Path

from nvct.host.nvml import worker
from nvct.host.nvml.session import NvmlSession
from tests.support.cpu import Limit
from tests.unit.host.nvml.library import PythonNvml

LIBRARY = "/lib/libnvidia-ml.so.1"
GPU: dict[str, object] = {"minor": 0, "uuid": "GPU-1", "name": "X"}
TIMEOUT_S = 30.0


class LoggedNvml(PythonNvml):
    """A library that records its calls in a file, because it is in another process."""

    def __init__(self, log: Path) -> None:
        super().__init__(GPU)
        self.log = log

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.write("init")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.write("shutdown")

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        self.write("version")
        return super().nvmlSystemGetDriverVersion()

    def write(self, word: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{word} {os.getpid()}\n")


def serve_library(connection: socket, path: str, log: Path) -> None:
    worker.serve(connection, path, lambda _path: LoggedNvml(log))


def entries(log: Path) -> list[tuple[str, int]]:
    rows = (row.split() for row in log.read_text().splitlines())
    return [(word, int(pid)) for word, pid in rows]


def pid_of(session: NvmlSession) -> int:
    assert session._worker
    return session._worker.pid


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(") ")[2][0] not in "ZX"


def wait_until_gone(pid: int) -> None:
    limit = Limit(TIMEOUT_S)
    while is_running(pid):
        assert not limit.is_over
        time.sleep(0.02)


def hang(connection: socket, path: str) -> None:
    time.sleep(600)
