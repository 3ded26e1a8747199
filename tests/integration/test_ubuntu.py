# SPDX-License-Identifier: Apache-2.0
"""The bundle, with nvct-hot if it is built, on Ubuntu: the oldest C library, and the newest one."""

import re
from pathlib import Path

import pytest

from tests.integration import bundles
from tests.integration.conftest import SimulatedNode
from tests.support import bundled, debian_root


@pytest.mark.slow
@pytest.mark.parametrize(
    "release", debian_root.releases(ubuntu=("bionic",), more=("focal", "resolute"))
)
def test_containers_with_gpus_start_from_the_bundle(
    release: str, simulated: SimulatedNode, tmp_path: Path
) -> None:
    # Ubuntu 18.04 has glibc 2.27, which is older than that of RHEL 8; 26.04 has 2.43.
    root = bundles.bare(tmp_path, release, "base-files", "libc6", "runc")

    said = bundles.said_in(root, bundled.tree(), simulated, bundles.CONTAINERS)

    assert len(re.findall(r"^GPU 0: NVIDIA H100.*UUID: GPU-", said, re.MULTILINE)) == 2
    assert "plain container" in said
