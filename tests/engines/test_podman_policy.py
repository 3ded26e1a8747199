# SPDX-License-Identifier: Apache-2.0
"""No command of Podman gives a GPU under a policy that denies what an engine gives."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.engines import configured, releases
from tests.engines.box import PROGRAMS, Box
from tests.engines.daemons import Done, Podman
from tests.engines.engines import CONFIG

pytestmark = pytest.mark.slow
SHIM = PROGRAMS / "nvidia-container-runtime"
NEW_S = 2.1
"""After it, the launcher trusts a file's times."""
POLICY = '[nvct.policy]\ndefault = "deny"\nengine-devices = "checked"\n'
USABLE = """\
(mkdir -p /x/sys/fs/cgroup/devices; mount -t cgroup -o devices c /x/sys/fs/cgroup/devices
echo $$ > /x/sys/fs/cgroup/devices/cgroup.procs) 2>/dev/null
mknod /n1 c 195 1 2>/dev/null
for node in /n1 /dev/nvidia1 /x/nvidia1 /x/dev/nvidia1 /dev/null2; do
  [ -e $node ] && (: < $node) 2>&1 | grep -q 'No such device' && echo "usable $node"
done
true
"""
"""It leaves its control group, if it can. Without a driver, an allowed open finds no device."""
ATTACKS = {
    "CDI": ("--device=nvidia.com/gpu=1",),
    "a node": ("--device=/dev/nvidia1:/dev/null2",),
    "a rule": ("--device-cgroup-rule=c 195:1 r", "--cap-add=MKNOD"),
    "a wide rule": ("--device-cgroup-rule=c *:* rwm", "--cap-add=MKNOD"),
    "a rule for one minor of every major": ("--device-cgroup-rule=c *:1 rw", "--cap-add=MKNOD"),
    "the host's control groups": ("--volume=/sys/fs/cgroup:/x/sys/fs/cgroup", "--cap-add=MKNOD"),
    "the host's root, read-only": ("--volume=/:/x:ro", "--cap-add=MKNOD"),
    "CAP_SYS_ADMIN": ("--cap-add=SYS_ADMIN,MKNOD",),
    "--privileged": ("--privileged",),
    "--privileged, served already": ("--privileged", "--env=NVIDIA_VISIBLE_DEVICES=void"),
}


@pytest.fixture(scope="module", params=[releases.of_release("trixie"), *releases.in_full("forky")])
def podman(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Podman:
    return configured.started(lambda: Podman(machine_of(request.param)))


@pytest.mark.parametrize("attack", ATTACKS)
def test_podman_gives_no_gpu(attack: str, podman: Podman) -> None:
    lines = podman.box.read(CONFIG).partition("[nvct.policy]")[0].splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("debug"))  # or no word is used

    def run() -> Done:
        return podman.run(USABLE, f"--runtime={SHIM}", *ATTACKS[attack])

    podman.box.write(CONFIG, text)
    free = run()
    assert free.returncode == 0, free
    assert "usable" in free.stdout, free
    podman.box.write(CONFIG, text + POLICY)
    time.sleep(NEW_S)
    podman.run("true", f"--runtime={SHIM}", "--device=nvidia.com/gpu=1")  # the launcher's words
    done = run()
    assert "usable" not in done.stdout, done
    assert "policy rule 'default' denies engine devices" in done.stderr, done


def test_podman_makes_no_container_without_a_cgroup_by_this_runtime(podman: Podman) -> None:
    """There, no device rule would hold."""
    words = podman.words("true", f"--runtime={SHIM}", "--cgroups=disabled")
    done = podman.podman(*(w for w in words if not w.startswith("--cgroup-parent")))
    assert "NoCgroups" in done.stderr, done
