# SPDX-License-Identifier: Apache-2.0
"""Every kind of container, every way, with the newest runc, crun and Podman instead of the host's.

The tests of tests/integration, in a mount namespace where a release's programs lie over /usr.
"""

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
def test_newer_programs_give_containers_their_gpus(release: str) -> None:
    try:
        engines = suite.tree(release)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    tests = [f"tests/integration/test_{name}.py" for name in TESTS]
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]

    completed = subprocess.run(
        ["unshare", "--mount", "sh", "-c", OVER_USR, str(engines), *arguments],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert completed.returncode == 0, completed.stdout[-4000:]
