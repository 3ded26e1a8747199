# SPDX-License-Identifier: Apache-2.0
"""A rootless dockerd: each way to a GPU, what the policy says of it, and attacks on the policy.

It runs as a user without rights, in the user namespace that RootlessKit makes.
"""

import json
import shutil
import time
from collections.abc import Iterator

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim import tree
from tests.engines import checks, docker_program
from tests.engines.box import DRIVER_ROOT, PROGRAMS, Box
from tests.engines.conftest import prepare
from tests.engines.docker_ways import EVERY, ROOTLESS_WAYS, Way
from tests.engines.engines import CONFIG, SHIM, Done
from tests.engines.test_docker_today import CHECKED, DENY, NEW_S, usable
from tests.engines.ways_out import of_volume

pytestmark = pytest.mark.slow
UID = "5001"
RUN = f"/run/user/{UID}"
STATE = "/var/lib/docker/rootless"
SOCKET = f"{RUN}/docker.sock"
ROOT = f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n[nvct]\nlayout = "classic"\n'
PREPARE = f"""\
set -e
echo 'user:x:{UID}:{UID}::{STATE}:/bin/sh' >> /etc/passwd
echo 'user:100000:65536' | tee /etc/subuid > /etc/subgid
mkdir -p {RUN} {STATE}/links {STATE}/home/a/b/c/deep
ln -s /dev {STATE}/links/folder
ln -s /dev/nvidia1 {STATE}/links/node
chown -R {UID}:{UID} {RUN} {STATE}
chmod 755 {STATE}/dockerd
"""
START = f"""\
mount --rbind /dev {STATE}/home/a/b/c/deep
rm -f /run/docker /run/containerd
exec {STATE}/dockerd --rootless --exec-root={STATE}/run --data-root={STATE}/data \\
  --pidfile={RUN}/docker.pid --host=unix://{SOCKET} --config-file={STATE}/daemon.json \\
  --bridge=none --iptables=false --ip6tables=false
"""
USABLE = f"""\
for i in {EVERY}; do
  for node in /dev/nvidia$i /x/nvidia$i /x/dev/nvidia$i /node$i /x/driver/dev/nvidia$i \\
    /x/a/b/c/deep/nvidia$i /proc/[0-9]*/root/dev/nvidia$i /x/[0-9]*/root/dev/nvidia$i; do
    [ -e $node ] && (: < $node) 2>&1 | grep -q 'No such device' && printf 'usable=%s ' $i && break
  done
done
{checks.LISTED}
true
"""
"""No control group refuses a node. Without a driver, an allowed open finds no device."""
ATTACKS = {
    "a folder by a link": (f"--volume={STATE}/links/folder:/x",),
    "a node by a link": (f"--volume={STATE}/links/node:/node1",),
    "a volume": (of_volume("type=none", "o=rbind", "device=/dev"),),
    "the host's root": ("--volume=/:/x",),
    "a folder of a driver root": ("--volume=/run/nvidia:/x",),
    "a mount far below": (f"--volume={STATE}/home:/x",),
    "the host's processes": ("--pid=host", "--cap-add=SYS_PTRACE"),
    "the host's /proc": ("--volume=/proc:/x", "--cap-add=SYS_PTRACE"),
}


class Rootless:
    """dockerd of a user without rights, with the shim as its default runtime."""

    def __init__(self, box: Box) -> None:
        dockerd, self.client, _ = docker_program.built()
        self.box = box
        self.policy: str | None = None
        runtimes = {"runtimes": {"nvidia": {"path": SHIM}}, "default-runtime": "nvidia"}
        box.write(f"{STATE}/daemon.json", json.dumps(runtimes))
        shutil.copy(dockerd, box.root / STATE.lstrip("/"))
        done = box.call("sh", "-c", PREPARE)
        assert done.returncode == 0, done
        box.write(CONFIG, ROOT)
        made = box.call(
            "nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml",
            f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook",
        )  # fmt: skip
        assert made.returncode == 0, made
        user = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
        env = ("env", f"XDG_RUNTIME_DIR={RUN}", f"HOME={STATE}")
        kit = ("rootlesskit", "--net=host", "--copy-up=/etc", "--copy-up=/run")
        box.start([*user, *env, *kit, "sh", "-c", START], "rootless.log")
        # Without a network driver of RootlessKit, `docker version` fails: moby, info_unix.go.
        box.until(
            lambda: box.accepts(SOCKET) and self.docker("info").returncode == 0, "rootless.log"
        )
        loaded = self.docker("load", f"--input={box.work}/plain.tar")
        assert loaded.returncode == 0, loaded

    def docker(self, *words: str) -> Done:
        """Run the command line of Docker."""
        return self.box.call(str(self.client), f"--host=unix://{SOCKET}", *words)

    def rules(self, policy: str) -> None:
        """Write config.toml with a policy, and have the launcher's words written."""
        if self.policy == policy:
            return
        self.box.write(CONFIG, ROOT + policy)
        self.policy = policy
        time.sleep(NEW_S)
        self.ask("--gpus=all")

    def ask(self, *flags: str, runtime: str = "nvidia") -> Done:
        """Start a container; it prints the GPUs that it can use."""
        words = ("run", "--rm", "--network=none", f"--runtime={runtime}", *flags)
        return self.docker(*words, "plain:test", "/bin/sh", "-c", USABLE)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rootless]:
    try:
        docker_program.built()
    except ContainerNotPossibleError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    engines, node, work = prepare("forky", tmp_path_factory)
    box = None
    try:
        box = Box(engines, node, work, DRIVER_ROOT)
        daemon = Rootless(box)
    except ContainerNotPossibleError as error:
        if box is not None:
            box.close()
        pytest.skip(error.message)
    yield daemon
    box.close()
    tree.destroy(node)


@pytest.mark.parametrize("way", ROOTLESS_WAYS, ids=lambda way: f"{way.asks} {way.runtime}")
def test_a_way(way: Way, docker: Rootless) -> None:
    for policy, expected in (("", "given"), (DENY, way.unchecked), (DENY + CHECKED, way.checked)):
        docker.rules(policy)
        done = docker.ask(*way.flags, runtime=way.runtime)
        assert usable(done) == (way.gpus if expected == "given" else ""), (expected, done)
        if not policy:
            assert ("libcuda.so.1" in done.stdout) == (way.capabilities == "ignored"), done
        if expected == "refused":
            assert "policy rule 'default' denies" in done.stderr, done


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_reaches_a_gpu(attack: str, docker: Rootless) -> None:
    docker.rules("")
    assert usable(docker.ask(*ATTACKS[attack])) in ("1", EVERY)
    docker.rules(DENY + CHECKED)
    done = docker.ask(*ATTACKS[attack])
    assert usable(done) == "", done
    assert "policy rule 'default' denies engine devices" in done.stderr, done


def test_other_containers_start(docker: Rootless) -> None:
    docker.rules(DENY + CHECKED)
    done = docker.ask("--volume=/etc:/x")
    assert done.returncode == 0, done
