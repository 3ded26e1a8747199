# SPDX-License-Identifier: Apache-2.0
"""The NRI plugin with real engines whose files nothing has touched: what pods get, and may have."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines import configured
from tests.engines.box import PROGRAMS, Box
from tests.engines.checks import NODES, UUID
from tests.engines.cri import Pod
from tests.engines.daemons import Containerd, Crio
from tests.engines.engines import CONFIG
from tests.engines.releases import in_full, of_release
from tests.engines.waiting_container import of_cri

pytestmark = pytest.mark.slow
SOCKET = "/var/run/nri/nri.sock"
LOG = "nri.log"
NRI = {
    2: '\n[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n',
    3: """
[plugins.'io.containerd.nri.v1.nri'.default_validator]
enable = true
""",
}
REQUIRED = {"required-plugins.noderesource.dev": '["nvct"]'}
PODS = 8
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
        self.box.write(path, self.box.read(path) + NRI[self.format])


ASKS = [of_release("resolute", name="containerd-2.2")]
"""An engine that asks for a verdict, and so can require plugins."""


@pytest.fixture(
    scope="module",
    params=[
        *in_full("trixie", name="containerd-1.7"), *ASKS, of_release("trixie", "crio", name="crio")
    ],
)  # fmt: skip
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


def test_who_has_which_gpu_is_known_while_the_container_runs(engine: Containerd | Crio) -> None:
    def rows() -> list[dict[str, object]]:
        done = engine.box.call(f"{PROGRAMS}/nvct", "ps", "--format=json")
        assert done.returncode == 0, done
        return [row for row in json.loads(done.stdout) if row["since"]]

    began = time.time()
    with plugin(engine) as log:
        asks = Pod(annotations={POD: GPU})
        with of_cri(engine, asks):
            engine.box.until(lambda: bool(rows()), LOG)
            (row,) = rows()
            assert row["gpu"] == 0
            assert began - 1 < float(str(row["since"])) < time.time() + 1
        engine.box.until(lambda: not rows(), LOG)
        told = engine.box.call(f"{PROGRAMS}/nvct", "log", "--outcome=given").stdout
    assert "; GPU-" in told, (told, log.read_text())
    assert f"annotation {POD}: {GPU}" in told


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


def test_what_reaches_the_host_is_refused(engine: Containerd | Crio) -> None:
    """The engines tell hostPID differently, and mount what they keep of a sandbox themselves."""
    kubelet = engine.box.call("mkdir", "--parents", "/run/kubelet/device-plugins")
    assert kubelet.returncode == 0, kubelet
    fake = "/run/docker/io.containerd.grpc.v1.cri/sandboxes/x/y"
    with plugin(engine, "--given-by-kubelet=enforce", "--kubelet-dir=/run/kubelet") as log:
        plain = engine.pod("echo ran", Pod(host_paths=("/usr",)))
        refused = [
            engine.pod("true", Pod(host_pid=True)),
            engine.pod("true", Pod(privileged=True)),
            *(
                engine.pod("true", Pod(host_paths=(path,)))
                for path in ("/run/nvidia/driver", "/sys/kernel/debug", fake)
            ),
        ]
    assert plain.stdout.strip() == "ran", (plain, log.read_text())
    for done in refused:
        assert "pods have what the kubelet gives" in done.stderr, (done, log.read_text())


@pytest.mark.parametrize("engine", ASKS, indirect=True)
def test_a_gap_refuses_pods_that_require_the_plugin(engine: Containerd | Crio) -> None:
    """Killed at any time: no GPU is missing silently where the pod requires the plugin."""
    asks = Pod(annotations={POD: GPU, **REQUIRED})
    gone = engine.pod(SMI, asks)
    assert gone.returncode == 125
    assert "required" in gone.stderr, gone
    with ThreadPoolExecutor() as pool:
        pods = [pool.submit(engine.pod, SMI, asks) for _ in range(PODS)]
        while not all(pod.done() for pod in pods):
            with plugin(engine):
                pass  # it is killed as soon as it is connected
    for pod in pods:
        done = pod.result()
        assert done.returncode == 125 or UUID.findall(done.stdout), done
    with plugin(engine):
        configured.has_one_gpu(engine.pod(SMI, asks))


def test_the_plugin_comes_back_after_the_engine(engine: Containerd | Crio) -> None:
    with plugin(engine) as log:
        engine.restart()
        engine.box.until(lambda: log.read_text().count("connected: ") > 1, LOG)
        configured.has_one_gpu(engine.pod(SMI, Pod(annotations={POD: GPU})))
