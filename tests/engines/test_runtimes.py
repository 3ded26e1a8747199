# SPDX-License-Identifier: Apache-2.0
"""Every kind of container, every way, with the newest runc, crun and Podman instead of the host's.

The tests of tests/integration, in a mount namespace where a release's programs lie over /usr.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.engines import suite
from tests.engines.box import REPOSITORY
from tests.engines.releases import in_full

pytestmark = pytest.mark.slow
TESTS = ("matrix", "containers", "prestart", "farm", "crash")
OVER_USR = 'mount -t overlay engines -o "lowerdir=$0/usr:/usr" /usr && exec "$@"'
TIMEOUT_S = 900


@pytest.mark.parametrize("release", [*in_full("forky"), *in_full("resolute")])
def test_containers_get_their_gpus_by_newer_programs(release: str) -> None:
    try:
        engines = suite.tree(release)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    tests = [f"tests/integration/test_{name}.py" for name in TESTS]
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", OVER_USR, str(engines), *words],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-4000:]
