# SPDX-License-Identifier: Apache-2.0
"""`make cluster` leaves a cluster that others can use, and `make cluster-down` leaves nothing."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.box import REPOSITORY
from tests.kubernetes import alone

pytestmark = pytest.mark.slow
UP = "-m tests.kubernetes.playground up"
DOWN = "-m tests.kubernetes.playground down"
TIMEOUT_S = 400
SEVEN = r"--for=jsonpath={.status.allocatable.nvidia\.com/gpu}=7"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: gpu}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: 'nvct:agent', imagePullPolicy: Never, command: [nvidia-smi, -L],
     resources: {limits: {nvidia.com/gpu: 1}}}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return what runs a program, and gives its output; the cluster is ended in any case."""
    alone.needed()
    monkeypatch.setenv("NVCT_CLUSTER_DIR", str(tmp_path / "cluster"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def typed(*words: str, at: Path = REPOSITORY) -> str:
        done = subprocess.run(
            words, cwd=at, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done
        return done.stdout

    yield typed
    typed(sys.executable, *DOWN.split())


def test_it_is_used_from_outside_and_ends_without_a_trace(
    run: Callable[..., str], tmp_path: Path
) -> None:
    shown = run(sys.executable, *UP.split())
    folder = tmp_path / "cluster"
    assert "cluster/kubectl get nodes" in shown
    assert run(sys.executable, *UP.split()) == shown  # it runs already

    (tmp_path / "pod.yaml").write_text(POD)
    kubectl = str(folder / "kubectl")
    run(kubectl, "apply", "-f", "pod.yaml", at=tmp_path)
    run(kubectl, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s", "pod/gpu")
    assert run(kubectl, "logs", "gpu").count("UUID: GPU-") == 1
    assert "deployed" in run(str(folder / "helm"), "list", "--all-namespaces")
    assert "gpu=8" in run(str(folder / "nvct"), "cluster", "status")
    assert "nvct/" in run(str(folder / "node"), "nvct", "ps")
    run(str(folder / "set"), "xid", "0", "79")
    run(kubectl, "wait", SEVEN, "--timeout=90s", "node", "--all")

    assert "are gone" in run(sys.executable, *DOWN.split())
    assert [path.name for path in tmp_path.iterdir()] == ["pod.yaml"]
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _text(p)]
    assert "no cluster runs" in run(sys.executable, *DOWN.split())


def _text(path: Path) -> str:
    """Return the text of a process's file, "" if it has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
