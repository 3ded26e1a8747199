# SPDX-License-Identifier: Apache-2.0
"""containerd and Podman load the image and run its programs."""

import json
import tarfile
from collections.abc import Callable

import pytest

from nvct.version import __version__
from tests.engines import configured
from tests.engines.box import Box
from tests.engines.daemons import Containerd, Podman
from tests.engines.releases import ALL
from tests.support import program_image

pytestmark = pytest.mark.slow
PLUGIN = ("device-plugin", "nvidia-device-plugin", "--version")
CALLS = {
    PLUGIN: f"nvct: {__version__}",
    ("gpu-feature-discovery", "gpu-feature-discovery", "--version"): f"nvct: {__version__}",
    ("gpu-kubelet-plugin", "gpu-kubelet-plugin", "--version"): f"nvct: {__version__}",
    ("agent", "/opt/nvct/bin/nvct-python", "-I", "-c", "import nvct.agent.kubernetes.cluster; print('loaded')"): "loaded",
    ("agent", "nvct", "agent", "--help"): "Run this node's agent",
    ("toolkit", "nvidia-toolkit", "--help"): "Install",
    ("agent", "bash", "-c", "type sleep cat sh && bash -c 'exec nvct --version'"): __version__,
    ("agent", "/opt/nvct/bin/nvct-python", "-I", "-c", "import grpc.aio; print('loaded')"): "loaded",
    ("agent", "/opt/nvct/bin/nvct-python", "-I", "-c", "import ssl; print(ssl.OPENSSL_VERSION)"):
        "OpenSSL 3.0.",
}  # fmt: skip
"""By tag and command: what a container prints, which has no network and a read-only root."""


@pytest.mark.parametrize("release", ALL)
def test_containerd_runs_its_programs(release: str, machine_of: Callable[[str], Box]) -> None:
    engine = configured.started(lambda: Containerd(machine_of(release), 2))
    done = engine.ctr("image", "import", str(program_image.archive()))
    assert done.returncode == 0, done
    for number, ((tag, *command), text) in enumerate(CALLS.items()):
        done = engine.ctr(
            "run", "--rm", "--read-only", f"--cgroup=/{engine.box.cgroup}/image-{number}",
            f"docker.io/library/nvct:{tag}", f"image-{number}", *command,
        )  # fmt: skip
        assert done.returncode == 0, done
        assert text in done.stdout, done
    engine.stop()


def test_podman_runs_its_programs(machine_of: Callable[[str], Box]) -> None:
    engine = configured.started(lambda: Podman(machine_of("trixie")))
    done = engine.podman("load", "--input", str(program_image.archive()))
    assert done.returncode == 0, done
    common = (
        "run",
        "--rm",
        "--network=none",
        "--read-only",
        f"--cgroup-parent=/{engine.box.cgroup}",
    )
    for (tag, *command), text in CALLS.items():
        done = engine.podman(*common, "--entrypoint=", f"localhost/nvct:{tag}", *command)
        assert done.returncode == 0, done
        assert text in done.stdout, done
    _, _, *arguments = PLUGIN
    done = engine.podman(*common, "localhost/nvct:device-plugin", *arguments)
    assert f"nvct: {__version__}" in done.stdout, done


def test_it_says_what_is_in_it() -> None:
    path = program_image.archive()
    bill = json.loads(path.with_name(path.name.replace("oci.tar", "spdx.json")).read_text())
    names = {one["name"] for one in bill["packages"]}
    assert {"nvct", "libc6", "bash", "python3.11-minimal", "grpcio", "lightkube", "click"} <= names
    with tarfile.open(path) as tar:
        index = json.load(tar.extractfile("index.json"))  # type: ignore[arg-type]
    tags = [one["annotations"]["org.opencontainers.image.ref.name"] for one in index["manifests"]]
    assert tuple(tags) == program_image.TAGS
