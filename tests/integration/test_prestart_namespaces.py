# SPDX-License-Identifier: Apache-2.0
"""Which process a prestart hook takes for a container, with real namespaces of real processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.rootless import is_open
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
UID = "65534"
CODE = (
    "import sys; sys.path.insert(0, {repository!r})\n"
    "from nvct.errors import NvctError\n"
    "from nvct.linux.kernel import KERNEL\n"
    "from nvct.container.prestart.container import Container\n"
    "try:\n"
    "    container = Container(int(sys.argv[1]), sys.argv[2])\n"
    "    container.enter(KERNEL).close()\n"
    "except NvctError as error:\n"
    "    print(error.message)\n"
    "else:\n"
    "    print('entered')\n"
)
OWN_MOUNTS = ["unshare", "--mount", "--propagation=private"]
# Root as in an engine that runs in a container: it may mount, but not look at process 1.
LIMITED = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
USER = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all"]
ROOTLESS = [*USER, "unshare", "--user", "--map-root-user", "--mount", "--propagation=private"]
NO_NAMESPACE = "has no mount namespace of its own"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)"),
]

users_can_read = pytest.mark.skipif(
    not is_open(Path(__file__).parent),
    reason="this checkout cannot be read by everybody, as the user needs",
)


@contextmanager
def running(words: list[str], first: str = "true") -> Iterator[int]:
    """Start a process that waits; it has done something first."""
    process = subprocess.Popen(
        [*words, "/bin/sh", "-c", f"{first} && echo ready && exec sleep 60"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip(f"{' '.join(words)} is not allowed here")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def asked(words: list[str], pid: int, root: Path) -> str:
    """Let a hook that runs in this way look at a process; return what it says."""
    code = CODE.format(repository=str(REPOSITORY))
    done = captured([*words, sys.executable, "-c", code, str(pid), str(root)], timeout=60)
    assert not done.stderr, done
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A container's root, which everybody may read."""
    for folder in [tmp_path, *tmp_path.parents][:4]:  # one more under xdist
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "rootfs/proc").mkdir(parents=True)
    return tmp_path / "rootfs"


@pytest.mark.parametrize(
    "caller",
    [[], OWN_MOUNTS, LIMITED, [*OWN_MOUNTS, *LIMITED]],
    ids=["as the host", "own mounts", "without ptrace", "own mounts, without ptrace"],
)
def test_a_process_of_the_host_is_no_container(caller: list[str], root: Path) -> None:
    with running(LIMITED) as pid:
        assert NO_NAMESPACE in asked(caller, pid, root)


@pytest.mark.parametrize(
    "caller",
    [[], OWN_MOUNTS, LIMITED, [*OWN_MOUNTS, *LIMITED]],
    ids=["as the host", "own mounts", "without ptrace", "own mounts, without ptrace"],
)
def test_a_process_with_mounts_below_its_root_is_one(caller: list[str], root: Path) -> None:
    with running([*OWN_MOUNTS, *LIMITED], f"mount -t tmpfs none {root}/proc") as pid:
        assert asked(caller, pid, root) == "entered"


def test_one_that_nobody_can_tell_from_the_host_is_none(root: Path) -> None:
    with running([*OWN_MOUNTS, *LIMITED]) as pid:
        assert NO_NAMESPACE in asked([*OWN_MOUNTS, *LIMITED], pid, root)


def test_the_hosts_root_is_no_container_s(root: Path) -> None:
    with running(OWN_MOUNTS, f"mount -t tmpfs none {root}/proc") as pid:
        assert asked([], pid, Path("/")) == "the container's root is the host's"
        assert asked([], pid, root) == "entered"


@users_can_read
def test_a_user_s_engine_gets_into_no_process_of_the_host(root: Path) -> None:
    with running(USER) as pid:
        said = asked(ROOTLESS, pid, root)
    assert said == f"the mnt namespace of process {pid} cannot be opened: Permission denied"


@users_can_read
def test_a_user_s_engine_gets_into_its_containers(root: Path) -> None:
    with running(ROOTLESS, f"mount -t tmpfs none {root}/proc") as pid:
        joined = ["nsenter", f"--target={pid}", "--user", *OWN_MOUNTS]
        assert asked(joined, pid, root) == "entered"
