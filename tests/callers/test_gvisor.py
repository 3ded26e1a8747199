# SPDX-License-Identifier: Apache-2.0
"""gVisor's runsc, which runs no hook in a container's namespace: nodes and libraries by mounts.

Programs of the driver need --nvproxy, which asks a real driver; here the loader is asked.
"""

import json
import subprocess
from collections.abc import Callable

import pytest

from nvct_sim import bundle
from tests.callers.checks import TRIPLET, publish
from tests.engines.box import Box
from tests.engines.checks import NODES
from tests.support import cdi_engine, software_images

pytestmark = [pytest.mark.slow, pytest.mark.engine]
SCRIPT = f"{NODES}; load-library libcuda.so.1 || echo none"


@pytest.fixture(scope="module")
def box(machine_of: Callable[[str], Box]) -> Box:
    box = machine_of("lxc")
    publish(box)  # writes config.toml, where nvidia-ctk finds the driver
    software_images.build("debian", box.work / "gvisor/rootfs")
    return box


def run(box: Box, hooks: str) -> subprocess.CompletedProcess[str]:
    folder = box.work / "gvisor"
    spec = str(folder / "spec.json")
    words = ("--node-numbers", f"--no-hooks={hooks}", f"--output={spec}")
    made = box.call("nvidia-ctk", "cdi", "generate", *words)
    assert made.returncode == 0, made
    document = cdi_engine.inject(bundle.config(["/bin/sh", "-c", SCRIPT]), spec, ["0"])
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    flags = ("--root=/run/runsc", "--network=none", "--ignore-cgroups")
    return box.call("runsc", *flags, "run", f"--bundle={folder}", f"gpu-{hooks}")


def test_without_hooks_the_libraries_are_found(box: Box) -> None:
    done = run(box, "debian")
    assert done.stdout.splitlines() == ["1", f"/lib/{TRIPLET}/libcuda.so.1"], done


def test_with_hooks_there_is_no_link_to_a_library(box: Box) -> None:
    assert run(box, "off").stdout.splitlines() == ["1", "none"]
