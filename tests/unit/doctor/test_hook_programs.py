# SPDX-License-Identifier: Apache-2.0
"""Hook programs of another release: nvct's own, and those of NVIDIA Container Toolkit."""

import json
import os
from pathlib import Path

import pytest

from nvct.cdi.check import conflicts
from nvct.cdi.read import registry
from nvct.doctor import incumbent
from nvct.doctor.model import Finding
from nvct.version import __version__, text
from tests.unit.doctor.broken_nodes import write

OURS = text("NVIDIA CDI Hook")


def findings(home: Path, printed: str, status: int = 0, *, mode: int = 0o755) -> list[Finding]:
    """Return what is found where the specification has a hook that prints a text."""
    lines = f"cat <<'END'\n{printed}\nEND\nexit {status}\n"
    program = write(home, "bin/nvidia-cdi-hook", f"#!/bin/sh\n{lines}")
    program.chmod(mode)
    return of(home, str(program))


def of(home: Path, *programs: str) -> list[Finding]:
    hooks = [{"hookName": "createContainer", "path": path, "env": ["A=1"]} for path in programs]
    document = {
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": {"hooks": hooks},
        "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}],
    }  # fmt: skip
    folder = write(home, "cdi/nvidia.json", json.dumps(document)).parent
    return list(incumbent.hook_programs(conflicts.in_force(registry.scan([str(folder)]))))


def test_the_installed_release_is_fine(tmp_path: Path) -> None:
    assert findings(tmp_path, OURS) == []
    assert findings(tmp_path, "NVIDIA CDI Hook version 1.19.1\ncommit: 123") == []


def test_another_release_of_nvct_is_named(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, OURS.replace(__version__, "0.0.7"))

    assert (finding.reason.name, finding.severity) == ("HookOtherRelease", "warning")
    assert "nvidia-cdi-hook is from nvct 0.0.7; nvct " in finding.evidence
    assert finding.evidence.startswith(f"{tmp_path}/cdi/nvidia.json: its hook ")


def test_a_vulnerable_hook_of_the_toolkit_is_named(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, "NVIDIA CDI Hook version 1.17.4\ncommit: 123")

    assert (finding.reason.name, finding.severity) == ("ToolkitVulnerable", "error")
    assert "1.17.4, which has CVE-2025-23266" in finding.evidence


@pytest.mark.parametrize(("printed", "status"), [("", 0), ("nvct: \x00", 0), (OURS, 3)])
def test_a_hook_that_does_not_tell_its_release_is_not_blamed(
    printed: str, status: int, tmp_path: Path
) -> None:
    (finding,) = findings(tmp_path, printed.replace("\x00", "\x01"), status)

    assert finding.severity == "unknown"


def test_a_hook_that_anybody_can_write_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = write(tmp_path, "bin/nvidia-cdi-hook", f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o777)

    (finding,) = of(tmp_path, str(program))

    assert finding.severity == "unknown"
    assert "everybody can write" in finding.evidence
    assert not mark.exists()


def test_hooks_that_are_gone_or_of_others_are_not_run(tmp_path: Path) -> None:
    loop = tmp_path / "nvidia-cdi-hook"
    loop.symlink_to(loop)
    os.mkfifo(tmp_path / "nvidia-ctk")

    paths = ("/no/nvidia-cdi-hook", str(loop), str(tmp_path / "nvidia-ctk"), "/bin/false")
    assert of(tmp_path, *paths) == []
