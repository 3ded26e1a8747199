# SPDX-License-Identifier: Apache-2.0
"""`make demo-kubernetes` shows a GPU in a pod, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.box import GROUP, REPOSITORY
from tests.engines.checks import UUID
from tests.kubernetes import alone

pytestmark = pytest.mark.slow
TIMEOUT_S = 400


def test_it_prints_each_command_and_its_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone.needed()
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kubernetes.demo"], cwd=REPOSITORY, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    output, _ = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0, output
    assert len(UUID.findall(output)) == 1, output
    assert "$ kubectl apply -f packaging/kubernetes/agent.yaml" in output
    assert "exit status" not in output
    assert list(tmp_path.iterdir()) == []
    assert list(Path("/sys/fs/cgroup").glob(f"*/{GROUP}{process.pid}")) == []


def test_without_its_programs_it_says_how_to_get_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kubernetes.demo"], cwd=REPOSITORY, text=True, check=False,
        capture_output=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "kubernetes is not built; see `make demo-kubernetes`" in done.stdout
