# SPDX-License-Identifier: Apache-2.0
"""Uses a bundle in a distribution that has no Python: on a simulated node, with real containers."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.integration import packages
from tests.integration.conftest import SimulatedNode
from tests.support import debian_root

STEPS = r"""
work=$1
bin=$DEBS/bin
ls /usr/bin/python3 /usr/bin/env 2> /dev/null && exit 1
mkdir -p /etc/nvidia-container-runtime /var/run/cdi /var/lib /usr/local/bin
printf '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n' > /etc/nvidia-container-runtime/config.toml
"$bin/nvct" --version
"$bin/nvidia-ctk" --version
"$bin/nvidia-container-cli" --version | head -n 1
"$bin/nvct" list --format=json > /tmp/inventory.json
"$bin/nvidia-ctk" --quiet cdi generate --output=/var/run/cdi/nvidia.yaml
"$bin/nvidia-ctk" cdi check
"$bin/nvidia-ctk" --quiet cdi list | grep MIG-
grep -m 1 "path: $bin/nvidia-cdi-hook" /var/run/cdi/nvidia.yaml
"$bin/nvct-python" -c "$NVML" /run/nvidia/driver
ln -s "$bin/nvidia-container-runtime" /usr/local/bin/nvidia-container-runtime
nvidia-container-runtime --version
"$bin/nvct" install --no-daemon --no-runtime-config --toolkit-install-dir=/opt/nvidia
"""
CONTAINERS = r"""
nvidia-container-runtime --root /run/runc-test run --bundle "$work/gpu" gpu
nvidia-container-runtime --root /run/runc-test run --bundle "$work/plain" plain
/opt/nvidia/toolkit/nvidia-container-runtime --root /run/runc-test run --bundle "$work/gpu" again
"""
NVML = r"""
import ctypes, os, sys
folder = f"{sys.argv[1]}/usr/lib/{os.uname().machine}-linux-gnu"
nvml = ctypes.CDLL(folder + "/libnvidia-ml.so.1")
print("nvmlInit says", nvml.nvmlInit_v2())
maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print("not of the bundle:", sorted(p for p in maps if not p.startswith(sys.prefix)))
"""


def files(bundle: Path) -> dict[str, tuple[int, int]]:
    return {
        os.path.join(folder, name): (found.st_size, found.st_mtime_ns)
        for folder, _, names in os.walk(bundle)
        for name in names
        for found in [os.lstat(os.path.join(folder, name))]
    }


def said_in(root: Path, bundle: Path, simulated: SimulatedNode, steps: str) -> str:
    env = {
        packages.ROOT_ENV: str(root), packages.DEBS_ENV: str(bundle),
        packages.STEPS_ENV: f"NVML='{NVML}'\n{STEPS}{steps}",
    }  # fmt: skip
    held = files(bundle)
    simulated.run(packages.installed, env)
    said = (simulated.work / "said").read_text(encoding="utf-8")
    print(said)
    assert files(bundle) == held  # nothing in it is ever written
    assert "nvct, version" in said
    assert "NVIDIA Container Toolkit CLI version" in said
    assert re.search(r"^nvidia\.com/gpu=MIG-[0-9a-f-]{36}$", said, re.MULTILINE)
    assert f"path: {bundle}/bin/nvidia-cdi-hook" in said
    assert "nvmlInit says 0" in said
    others = re.search(r"not of the bundle: \[(.*)\]", said)
    assert others is not None
    assert re.fullmatch(r"'\S+/libnvidia-ml\.so[\d.]*'", others[1])
    return said


def bare(place: Path, release: str, *names: str) -> Path:
    """Unpack packages into a root, and let busybox be what is not in them."""
    try:
        found = debian_root.root(release, "busybox-static", *names, bare=True)
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))
    subprocess.run(["cp", "-a", f"{found}/.", place], check=True)
    for name in ("sh", "ls", "mkdir", "ln", "cp", "env", "grep", "head"):
        if not (place / "bin" / name).exists():
            (place / "bin" / name).symlink_to("busybox")
    return place
