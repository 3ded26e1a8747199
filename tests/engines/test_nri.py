# SPDX-License-Identifier: Apache-2.0
"""The NRI plugin with real engines whose files nothing has touched: what pods get, and may have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines import configured
from tests.engines.box import Box
from tests.engines.checks import NODES, UUID
from tests.engines.cri import Pod
from tests.engines.daemons import Containerd, Crio
from tests.engines.engines import CONFIG
from tests.engines.releases import of_release

pytestmark = pytest.mark.slow
SOCKET = "/var/run/nri/nri.sock"
LOG = "nri.log"
NRI = {2: '\n[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n'}
POD = "nvidia.cdi.k8s.io/pod"
GPU = "nvidia.com/gpu=0"
CHECKED = '\n[nvct.policy]\nengine-devices = "checked"\n'
DENY = '[[nvct.policy.rules]]\nname = "none"\nthen = "deny"\nreason = "not here"\n'
SMI = "nvidia-smi -L"


class NriContainerd(Containerd):
    """containerd with NRI, which 1.7 leaves out by default."""

    def _write_config(self) -> None:
        super()._write_config()
        path = "/etc/containerd/config.toml"
        self.box.write(path, self.box.read(path) + NRI.get(self.format, ""))


@pytest.fixture(
    scope="module",
    params=[
        of_release("trixie", name="containerd-1.7"),
        of_release("resolute", name="containerd-2.2"),
        of_release("trixie", "crio", name="crio"),
    ],
)
def engine(
    request: pytest.FixtureRequest, machine_of: Callable[[str], Box]
) -> Iterator[Containerd | Crio]:
    daemon: Containerd | Crio
    if request.param == "crio":
        daemon = configured.started(lambda: Crio(machine_of("trixie")))
    else:
        release, version = request.param, 2 if request.param == "trixie" else 3
        daemon = configured.started(lambda: NriContainerd(machine_of(release), version))
    yield daemon
    daemon.stop()


@contextmanager
def plugin(engine: Containerd | Crio, *flags: str) -> Iterator[Path]:
    """Run the plugin until the block ends; yield its log."""
    log = engine.box.work / LOG
    log.write_text("")
    process = engine.box.start([sys.executable, "-m", "nvct.nri.main", *flags], LOG)
    try:
        engine.box.until(lambda: "connected: " in log.read_text(), LOG)
        yield log
    finally:
        process.terminate()
        process.wait()


def test_a_pod_gets_what_its_annotation_names(engine: Containerd | Crio) -> None:
    before = engine.snapshot()
    with plugin(engine) as log:
        given = engine.pod(SMI, Pod(annotations={POD: GPU}))
        silent = engine.pod(NODES, Pod(env={"NVIDIA_VISIBLE_DEVICES": "all"}))
        unknown = engine.pod("true", Pod(annotations={POD: "nvidia.com/gpu=77"}))
    assert given.returncode == 0, (given, log.read_text())
    assert len(UUID.findall(given.stdout)) == 1
    configured.has_no_gpu(silent)
    assert unknown.returncode == 125
    assert "nvct: nvidia.com/gpu has no device '77'" in unknown.stderr
    assert engine.snapshot() == before


def test_policy_decides_by_numbers(engine: Containerd | Crio) -> None:
    before = engine.box.read(CONFIG)
    engine.box.write(CONFIG, before + CHECKED + DENY)
    try:
        with plugin(engine) as log:
            plain = engine.pod(NODES, Pod())
            by_name = engine.pod(SMI, Pod(cdi=(GPU,)))
            annotated = engine.pod(SMI, Pod(annotations={POD: GPU}))
            privileged = engine.pod(NODES, Pod(privileged=True))
    finally:
        engine.box.write(CONFIG, before)
    configured.has_no_gpu(plain)
    if "containerd 1." in log.read_text():  # which has CDI switched off
        assert by_name.returncode == 127
    else:
        assert "not here" in by_name.stderr, (by_name, log.read_text())
    for refused in (annotated, privileged):
        assert "not here" in refused.stderr, (refused, log.read_text())
