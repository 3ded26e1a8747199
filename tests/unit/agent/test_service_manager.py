# SPDX-License-Identifier: Apache-2.0
"""What systemd is told: by the protocol of sd_notify(3)."""

import os
import socket
from pathlib import Path

import pytest

from nvct.agent.main import NOTIFY_ENV, READY, notify


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, *, is_abstract: bool) -> None:
    path = f"@nvct-test-{os.getpid()}" if is_abstract else f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(5)
        manager.bind(f"\0{path[1:]}" if is_abstract else path)
        notify({NOTIFY_ENV: path}, READY)
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("path", ["", "vsock:2:1234", "/nowhere/at/all"])
def test_where_nobody_listens_nothing_happens(path: str) -> None:
    notify({NOTIFY_ENV: path}, READY)
