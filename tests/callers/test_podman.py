# SPDX-License-Identifier: Apache-2.0
"""What Podman has besides `podman run --device`: --gpus, pods of a manifest, builds."""

from collections.abc import Callable

import pytest

from tests.callers.checks import SCRIPT, has_gpus, publish
from tests.engines import configured, releases
from tests.engines.box import Box
from tests.engines.daemons import IMAGE, SPEC, Podman

pytestmark = pytest.mark.slow
UNIFIED = "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
"""Podman 6 runs with no other control groups; nor does `podman build` with a CDI name."""
POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: gpu}}
spec:
  restartPolicy: Never
  hostNetwork: true
  containers:
  - name: asks
    image: {IMAGE}
    command: ["/bin/sh", "-c", {SCRIPT!r}]
    resources: {{limits: {{"nvidia.com/gpu=0": 1}}}}
"""
PUBLISHED = "/var/run/cdi/nvidia.yaml"
CDI_FOLDERS = '[engine]\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'
BUILT = "FROM {image}\nRUN {script}\n"


@pytest.fixture(
    scope="module",
    params=[pytest.param("podman5", marks=pytest.mark.engine), *releases.in_full("podman6")],
)
def podman(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Podman:
    def make() -> Podman:
        box = machine_of(request.param)
        assert box.call("sh", "-c", UNIFIED).returncode == 0
        return Podman(box)

    return configured.started(make)


@pytest.mark.parametrize(("value", "count"), [("all", 8), ("0", 1)])
def test_gpus(value: str, count: int, podman: Podman) -> None:
    has_gpus(podman.run(SCRIPT, f"--gpus={value}"), count)


@pytest.mark.parametrize(("limit", "count"), [("nvidia.com/gpu=0", 1), ("nvidia.com/gpu", 0)])
def test_a_pod_of_a_manifest(limit: str, count: int, podman: Podman) -> None:
    podman.box.write("/run/pod.yaml", POD.replace("nvidia.com/gpu=0", limit))
    done = podman.podman("kube", "play", "--network=none", "/run/pod.yaml")
    assert done.returncode == 0, done
    podman.podman("wait", "gpu-asks")
    logs = podman.podman("logs", "gpu-asks")
    podman.podman("kube", "down", "/run/pod.yaml")
    if count:
        has_gpus(logs)
    else:
        assert logs.stdout.splitlines()[0] == "0", logs
    assert not podman.podman("ps", "--all", "--quiet").stdout


def test_a_build(podman: Podman) -> None:
    """The step has the GPU; in the image are empty files and links that lead nowhere.

    Buildah writes device rules without an access, which runc refuses, and crun on version 1. That
    of Podman 5 reads /etc/cdi alone, if no file names both folders.
    """
    podman.box.write("/run/build/Containerfile", BUILT.format(image=IMAGE, script=SCRIPT))
    words = ("--network=none", "--no-cache", "--tag=built", "--device=nvidia.com/gpu=0")
    podman.box.call("rm", SPEC)
    publish(podman.box, f"--output={PUBLISHED}")
    if podman.podman("--version").stdout.startswith("podman version 5."):
        refused = podman.podman("--runtime=crun", "build", *words, "/run/build")
        assert "unresolvable CDI devices nvidia.com/gpu=0" in refused.stderr, refused
        podman.box.write("/etc/containers/containers.conf.d/cdi.conf", CDI_FOLDERS)
    has_gpus(podman.podman("--runtime=crun", "build", *words, "/run/build"))
    find = "find / -xdev -name '*cuda*' -type f -size +0; nvidia-smi -L || echo none"
    again = [word if word != IMAGE else "localhost/built" for word in podman.words(find)]
    assert podman.podman(*again).stdout == "none\n"
    again = [word if word != IMAGE else "localhost/built" for word in podman.words(SCRIPT)]
    has_gpus(podman.podman(*again[:1], "--gpus=0", *again[1:]))
