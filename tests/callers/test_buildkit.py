# SPDX-License-Identifier: Apache-2.0
"""BuildKit: `RUN --device`, with an entitlement or the annotation that needs none."""

import subprocess
import tarfile
from collections.abc import Callable

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.callers import programs
from tests.callers.checks import SCRIPT, has_gpus, publish
from tests.engines.box import Box

pytestmark = pytest.mark.slow
SOCKET = "/run/buildkit/buildkitd.sock"
CONFIG = """\
root = "/run/buildkit-state"
[grpc]
  address = ["unix://{socket}"]
[worker.oci]
  enabled = true
  binary = "runc"
  networkMode = "host"
  defaultCgroupParent = "{group}"
[worker.containerd]
  enabled = false
"""
DOCKERFILE = """\
FROM scratch
ADD root.tar /
ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin
RUN {flags} {script}
"""


class BuildKit:
    """buildkitd in a box, and its client."""

    def __init__(self, box: Box) -> None:
        """Start it.

        Raises:
            ContainerNotPossibleError: it is not built, or does not start here.
        """
        self.box = box
        self._client = programs.path_of(programs.BUILDCTL)
        box.write("/run/buildkitd.toml", CONFIG.format(socket=SOCKET, group=box.cgroup))
        daemon = programs.path_of(programs.BUILDKITD)
        box.start([daemon, "--config=/run/buildkitd.toml"], "buildkitd.log")
        box.until(lambda: box.accepts(SOCKET), "buildkitd.log")
        with tarfile.open(box.work / "root.tar", "w") as tar:
            tar.add(box.work / "rootfs", ".")
        box.call("mkdir", "-p", "/run/context")
        box.call("cp", f"{box.work}/root.tar", "/run/context")

    def build(
        self, flags: str, *words: str, script: str = SCRIPT
    ) -> subprocess.CompletedProcess[str]:
        """Build an image whose RUN has flags; words are the client's."""
        text = DOCKERFILE.format(flags=flags, script=script)
        self.box.write("/run/context/Dockerfile", text)
        return self.box.call(
            self._client, f"--addr=unix://{SOCKET}", "build", "--frontend=dockerfile.v0",
            "--local=context=/run/context", "--local=dockerfile=/run/context", "--no-cache",
            "--progress=plain", *words,
        )  # fmt: skip


@pytest.fixture(scope="module")
def buildkit(machine_of: Callable[[str], Box]) -> BuildKit:
    try:
        return BuildKit(machine_of("trixie"))
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


ONE = "--device=nvidia.com/gpu=0"


def test_an_allowed_build_gets_its_devices(buildkit: BuildKit) -> None:
    publish(buildkit.box, "--allow-builds=false")
    has_gpus(buildkit.build(ONE, "--allow=device"))
    has_gpus(buildkit.build("--device=nvidia.com/gpu=all", "--allow=device"), 8)
    has_gpus(buildkit.build(ONE, "--allow=device=nvidia.com/gpu=0"))
    has_gpus(buildkit.build(f"{ONE},required", "--allow=device"))
    refused = buildkit.build("--device=nvidia.com/gpu=99,required", "--allow=device")
    assert 'required device "nvidia.com/gpu=99" is not registered' in refused.stderr, refused
    assert buildkit.build("--device=nvidia.com/gpu=99", script="true").returncode == 0
    without = buildkit.build("", script="ls /dev | grep -c nvidia || echo none")
    assert "none" in without.stderr, without


def test_a_build_that_is_not_allowed_is_refused_without_the_annotation(buildkit: BuildKit) -> None:
    publish(buildkit.box, "--allow-builds=false")
    refused = buildkit.build(ONE)
    assert refused.returncode, refused
    assert "device" in refused.stderr, refused
    publish(buildkit.box, "--allow-builds")
    has_gpus(buildkit.build(ONE))
    publish(buildkit.box, "--allow-builds=false")
    assert buildkit.build(ONE).returncode


PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"


@pytest.mark.parametrize(("hooks", "left"), [("off", [PROFILE]), ("debian", [])])
def test_no_library_of_the_driver_stays_in_the_image(
    hooks: str, left: list[str], buildkit: BuildKit
) -> None:
    """A hook leaves links, a file and its ld.so.cache; without hooks there are empty files."""
    publish(buildkit.box, "--allow-builds=false", f"--no-hooks={hooks}")
    output = "--output=type=tar,dest=/run/built.tar"
    done = buildkit.build(ONE, "--allow=device", output)
    publish(buildkit.box, "--no-hooks=off")
    has_gpus(done, libcuda="")
    with tarfile.open(buildkit.box.root / "run/built.tar") as tar:
        files = [m for m in tar.getmembers() if "cuda" in m.name or "nvidia" in m.name]
    assert [m.name for m in files if m.isfile() and m.size] == left
    assert any(m.name.endswith("/libcuda.so.1") for m in files)
    assert [m.name for m in files if m.issym()] == [] or hooks == "off"
