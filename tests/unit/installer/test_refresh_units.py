# SPDX-License-Identifier: Apache-2.0
"""Units that publish again: written where systemd runs, and removed."""

import shutil
from pathlib import Path

import pytest

from nvct.engine.command import Completed
from nvct.installer import publication
from tests.support.processes import captured
from tests.unit.installer.conftest import Ask

START = ["start", "nvct-publish.path"]
STOP = ["stop", "nvct-publish.path", "nvct-publish.service"]


class Host:
    """A host's root, its systemctl, and what was said."""

    def __init__(self, root: Path, ask: Ask) -> None:
        self.said, self.calls = list[str](), list[list[str]]()
        self.folder = root / "run/systemd/system"
        self.folder.mkdir(parents=True)
        self.request = ask(host_root=str(root))
        self.done = Completed(status=0)

    def run(self, argv: list[str]) -> Completed:
        program, *words = argv
        assert program == "systemctl"
        self.calls.append(words)
        return self.done

    def start(self) -> None:
        publication.start_watch(self.request, self.said.append, self.run)

    def stop(self) -> None:
        publication.stop_watch(self.request, self.said.append, self.run)


@pytest.fixture
def host(tmp_path: Path, ask: Ask) -> Host:
    return Host(tmp_path / "host", ask)


def test_units_are_written_once_and_removed_once(host: Host) -> None:
    host.start()
    host.start()
    assert host.calls == [["daemon-reload"], START, START]
    service = (host.folder / "nvct-publish.service").read_text()
    assert f"ExecStart={host.request.toolkit}/nvct publish" in service
    host.calls.clear()
    host.stop()
    host.stop()
    assert host.calls == [STOP, ["daemon-reload"]]
    assert host.said == ["removed /run/systemd/system/nvct-publish.path and nvct-publish.service"]
    assert list(host.folder.iterdir()) == []


def test_a_changed_unit_is_read_again(host: Host) -> None:
    host.start()
    (host.folder / "nvct-publish.path").write_text("[Path]\n")
    host.calls.clear()
    host.start()
    assert host.calls == [["daemon-reload"], START]


def test_without_systemd_nothing_is_written(host: Host) -> None:
    host.folder.rmdir()
    host.start()
    host.stop()
    assert (host.calls, host.said) == ([], [])
    assert not host.folder.exists()


def test_a_systemd_that_refuses_is_a_warning(host: Host) -> None:
    host.done = Completed(status=1, err="Failed to connect to bus\n")
    host.start()
    assert host.calls == [["daemon-reload"]]
    assert host.said == ["warning: the host's systemd: Failed to connect to bus"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_units(host: Host) -> None:
    program = host.folder.parents[2] / "nvct"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    host.start()
    for path in host.folder.iterdir():
        path.write_text(path.read_text().replace(host.request.toolkit, str(program.parent)))
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no"]
    files = sorted(str(path) for path in host.folder.iterdir())
    done = captured([*words, *files])
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
