# SPDX-License-Identifier: Apache-2.0
"""Services of the host: those that run are stopped and started again, after a kill, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvct.agent.mig_manager.host_services import STOPPED, HostServices
from nvct.errors import DocumentError, HostError
from tests.support.broken_disk import break_call

SYSTEMCTL = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  "is-active --quiet dcgm.service") exit 0;;
  "start dcgm.service") [ ! -e {log}.broken ] || {{ echo "it is masked" >&2; exit 1; }};;
  is-active*) exit 3;;
esac
"""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl and a file of clients; return that file."""
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(log=tmp_path / "log"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "clients.yaml"
    path.write_text("version: v1\nsystemd-services: [dcgm.service, nvsm.service]\n")
    return path


def called(clients: Path) -> list[str]:
    log = clients.parent / "log"
    return log.read_text().splitlines() if log.exists() else []


def services(clients: Path) -> HostServices:
    return HostServices("/nowhere", str(clients), str(clients.parent))


def test_only_what_runs_is_stopped_and_started(clients: Path) -> None:
    services(clients).stop()
    assert called(clients)[-1] == "stop dcgm.service"
    services(clients).start()  # another process
    assert called(clients)[-1] == "start dcgm.service"
    services(clients).start()
    assert called(clients).count("start dcgm.service") == 1


def test_one_that_does_not_start_is_tried_again(clients: Path) -> None:
    broken = clients.parent / "log.broken"
    broken.touch()
    services(clients).stop()
    with pytest.raises(HostError, match=r"systemctl start dcgm\.service .* fails: it is masked"):
        services(clients).start()
    broken.unlink()
    services(clients).start()
    assert called(clients).count("start dcgm.service") == 2


@pytest.mark.parametrize("call", ["open", "unlink"])
def test_a_disk_that_fails_is_a_sentence(
    call: str, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services(clients).stop()
    break_call(monkeypatch, call, STOPPED)

    with pytest.raises(HostError, match=rf"{STOPPED}, cannot be used: Input/output error"):
        services(clients).start()


def test_without_a_file_systemd_is_not_asked(clients: Path) -> None:
    nothing = HostServices("/", "", str(clients.parent))
    nothing.stop()
    nothing.start()
    assert called(clients) == []


@pytest.mark.parametrize("text", ["[1]", "systemd-services: 7", "{", None])
def test_a_malformed_file_is_refused(clients: Path, text: str | None) -> None:
    if text is None:
        clients.unlink()
    else:
        clients.write_text(text)
    with pytest.raises(DocumentError, match=r"clients\.yaml(: No such| lists no s| is malf)"):
        services(clients).stop()
    assert called(clients) == []
