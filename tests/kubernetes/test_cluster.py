# SPDX-License-Identifier: Apache-2.0
"""The tests' own cluster: it starts, and leaves nothing behind."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim import tree
from tests.engines import conftest as engines
from tests.engines.box import DRIVER_ROOT, REPOSITORY, Box
from tests.engines.releases import of_release
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import CASES
from tests.kubernetes.pods import Pod, run

pytestmark = pytest.mark.slow
KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from nvct_sim import tree
from tests.engines.box import Box
programs, node, work = (Path(argument) for argument in sys.argv[2:5])
box = Box(programs, tree.load(node), work, sys.argv[5])
assert box.call("mkdir", "-p", f"/sys/fs/cgroup/pids/{box.cgroup}/pod").returncode == 0
assert box.start(["sleep", "1000"], "sleep.log")
print(box.init, box.cgroup, flush=True)
time.sleep(1000)
"""
"""Code of tests with a machine that runs a daemon and has a control group."""
FILES = (
    "/etc/cni", "/opt/cni", "/var/lib/kubelet", "/var/lib/etcd", "/run/kubernetes", "/var/lib/crio",
    "/run/crio",
)  # fmt: skip


@pytest.mark.parametrize("case", [of_release("trixie"), "trixie-crio"])
def test_a_run_leaves_no_process_mount_group_or_file(
    case: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    release, engine_of = CASES[case]
    programs, node, work = engines.prepare(release, tmp_path_factory)
    before = _traces(work)
    try:
        with contextlib.closing(Box(programs, node, work, DRIVER_ROOT)) as box:
            engine = engine_of(box)
            engine.start()
            assert run(Cluster(engine).api, "once", Pod(script="echo runs")).log == "runs\n"
        assert _traces(work) == before
        assert _of_group(box.cgroup) == []
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    finally:
        tree.destroy(node)


@pytest.mark.parametrize("release", [of_release("trixie")])
def test_tests_that_are_killed_leave_no_process_and_the_next_remove_their_groups(
    release: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs, node, work = engines.prepare(release, tmp_path_factory)
    arguments = [str(REPOSITORY), str(programs), str(node.tree), str(work), DRIVER_ROOT]
    tests = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert tests.stdout is not None
    try:
        said = tests.stdout.readline()
        if not said:
            pytest.skip("no private machine here")
        pid, group = said.split()
        init = Path("/proc", pid)
        assert init.exists()
        assert list(Path("/sys/fs/cgroup").glob(f"*/{group}"))  # later a box beside may remove it
        tests.kill()
        tests.wait()
        assert wait(lambda: not init.exists())
        Box(programs, node, work, DRIVER_ROOT).close()
        assert not list(Path("/sys/fs/cgroup").glob(f"*/{group}"))
    finally:
        tests.kill()
        tests.wait()
        tests.stdout.close()
        tree.destroy(node)


def _traces(work: Path) -> dict[str, list[str]]:
    """Return mounts and files that a cluster could leave on this host, not those of other tests."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return {
        "mounts": [line for line in mounts if str(work) in line or "kube" in line],
        "files": [path for path in FILES if Path(path).exists()],
    }


def _of_group(group: str) -> list[str]:
    """Return a machine's control groups, and the processes in them."""
    found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{group}")]
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if group in re.split("[/\n]", path.read_text()):
                found.append(path.parent.name)
        except OSError:
            continue  # it has just ended
    return found
