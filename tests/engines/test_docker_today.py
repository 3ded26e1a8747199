# SPDX-License-Identifier: Apache-2.0
"""Docker that serves --gpus by CDI: each way to a GPU, and what the policy says of it."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.container.settings import ENGINE_DEVICES
from nvct.errors import ContainerNotPossibleError
from nvct_sim import tree
from tests.engines import checks, docker_program, ways_out
from tests.engines.box import DRIVER_ROOT, PROGRAMS, Box
from tests.engines.conftest import prepare
from tests.engines.docker_ways import COMPOSE, EVERY, TABLE, WAYS, Way
from tests.engines.engines import CONFIG, Docker, Done, Want

pytestmark = pytest.mark.slow
USABLE = f"""\
for i in {EVERY}; do
  mknod /n$i c 195 $i && (: < /n$i) 2>&1 | grep -q 'No such device' && printf 'usable=%s ' $i
  rm -f /n$i
done
{checks.LISTED}
true
"""
"""A GPU's node is made under another name: without a driver, an allowed open finds no device."""
HOOK = "nvidia-container-runtime-hook"
NEW_S = 2.1
"""After it, a file's times tell whether it has changed."""
DENY = '\n[nvct.policy]\ndefault = "deny"\n'
CHECKED = 'engine-devices = "checked"\n'
DEBIANS_COMPOSE = "/usr/bin/docker-compose"
SWARM = 'swarm-resource = "DOCKER_RESOURCE_GPU"\n'
NAME = "DOCKER_RESOURCE_GPU"


class DockerToday(Docker):
    """dockerd, docker and Compose as built; containerd and runc are the release's."""

    def __init__(self, box: Box, node: tree.Node) -> None:
        dockerd, client, compose = map(str, docker_program.built())
        self.dockerd, self.client, self.compose = (dockerd,), client, compose
        self.by_hook = False
        self.settled = ""
        super().__init__(box, node)
        hooks = box.work / "hooks"
        hooks.mkdir()
        (hooks / HOOK).symlink_to(PROGRAMS / HOOK)
        self._paths = {
            False: (dockerd,),
            True: ("env", f"PATH={hooks}:/usr/sbin:/usr/bin:/sbin:/bin", dockerd),
        }

    def serve(self, *, by_hook: bool) -> None:
        """Restart the daemon, if it is to serve --gpus in another way."""
        if by_hook != self.by_hook:
            self.dockerd, self.by_hook = self._paths[by_hook], by_hook
            self.again()

    def rules(self, policy: str) -> None:
        """Write config.toml with a policy; without a debug log, the launcher decides as well."""
        self.configure("classic")
        lines = self.box.read(CONFIG).splitlines()
        text = "\n".join(line for line in lines if not line.startswith("debug"))
        self.box.write(CONFIG, f"{SWARM}{text}{policy}")
        self.settled = ""

    def settle(self, default: str = "deny") -> None:
        """Let a policy without rules decide, and have the launcher's words written."""
        policy = DENY.replace("deny", default) + CHECKED
        if self.settled == policy:
            return
        self.rules(policy)
        time.sleep(NEW_S)
        self.run("true", Want(env=(), flags=("--gpus=all",)))
        assert "word" in self.box.read("/run/nvct/launcher.conf")
        self.settled = policy

    def ask(self, way: Way) -> Done:
        """Start a container in some way; it prints the GPUs that it can use."""
        if way.compose:
            self.box.write("/run/script", USABLE)
            self.box.write("/run/compose.yaml", COMPOSE + way.compose)
            words = ("up", "--no-color", "--no-log-prefix", "--force-recreate", "asks")
            compose = DEBIANS_COMPOSE if way.is_debians else self.compose
            return self.box.call(compose, "--file=/run/compose.yaml", *words)
        if way.is_service:
            return self._service()
        return self.run(USABLE, Want(env=(), flags=(f"--runtime={way.runtime}", *way.flags)))

    def _service(self) -> Done:
        script = ("plain:test", "/bin/sh", "-c", USABLE)
        done = self.docker(
            "service", "create", "--quiet", "--detach", "--network=host", "--name=asks",
            "--cap-add=CAP_MKNOD", "--env=NVIDIA_DRIVER_CAPABILITIES=utility",
            "--generic-resource=GPU=1", "--restart-condition=none", *script,
        )  # fmt: skip
        assert done.returncode == 0, done
        state = ("service", "ps", "--no-trunc", "--format={{.CurrentState}} {{.Error}}", "asks")
        ends = ("Complete", "Failed", "Rejected")
        self.box.until(lambda: self.docker(*state).stdout.startswith(ends), "dockerd.log")
        logs, said = self.docker("service", "logs", "--raw", "asks"), self.docker(*state).stdout
        logs.stderr += said
        logs.returncode = 0 if said.startswith("Complete") else 1
        self.docker("service", "rm", "asks")
        return logs


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerToday]:
    try:
        docker_program.built()
    except ContainerNotPossibleError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    engines, node, work = prepare("forky", tmp_path_factory)
    try:
        box = Box(engines, node, work, DRIVER_ROOT)
        daemon = DockerToday(box, node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    done = box.call(
        "nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/nvidia.yaml",
        f"--nvidia-cdi-hook-path={PROGRAMS}/nvidia-cdi-hook",
    )  # fmt: skip
    assert done.returncode == 0, done
    yield daemon
    box.close()
    tree.destroy(node)


def usable(done: Done) -> str:
    """Return the numbers of the GPUs that a container could use."""
    words = done.stdout.split()
    return " ".join(word.removeprefix("usable=") for word in words if word.startswith("usable="))


@pytest.fixture
def served(docker: DockerToday, request: pytest.FixtureRequest) -> Iterator[DockerToday]:
    """Docker as a way needs it."""
    way: Way = request.getfixturevalue("way")
    docker.serve(by_hook=way.by_hook)
    if way.is_service:
        docker.again(node_generic_resources=[f"GPU={index}" for index in (1,)])
        assert docker.docker("swarm", "init", "--advertise-addr=127.0.0.1").returncode == 0
    yield docker
    if way.is_service:
        docker.docker("swarm", "leave", "--force")
        docker.again()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.asks} {way.runtime}")
def test_a_way(way: Way, served: DockerToday) -> None:
    served.rules("")
    free = served.ask(way)
    assert free.returncode == 0, free
    assert usable(free) == way.gpus, free
    has_cuda = "libcuda.so.1" in free.stdout
    assert has_cuda == (way.capabilities == "ignored"), free
    for policy, expected in ((DENY, way.unchecked), (DENY + CHECKED, way.checked)):
        served.rules(policy)
        done = served.ask(way)
        assert usable(done) == (way.gpus if expected == "given" else ""), (expected, done)
        if expected == "refused":
            log = (served.box.work / "dockerd.log").read_text(encoding="utf-8", errors="replace")
            assert "policy rule 'default' denies" in done.stderr + log[-4000:], done


def test_every_form_of_gpus(docker: DockerToday) -> None:
    docker.serve(by_hook=False)
    docker.rules("")
    listed = docker.run("nvidia-smi -L", Want(env=(), flags=("--gpus=all",)))
    uuids = checks.UUID.findall(listed.stdout)
    assert len(uuids) == 8, listed
    for asks, gpus in (
        ("all", EVERY), ("2", "0 1"), ("count=3", "0 1 2"), ('"device=1,2"', "1 2"),
        (f"device={uuids[4]}", "4"), (f'"device={uuids[1]},{uuids[6]}"', "1 6"),
        ("driver=nvidia,count=1", "0"), ("driver=nvidia.cdi,count=1", "0"),
        ("device=nvidia.com/gpu=3", "3"), ('all,"capabilities=compute,utility"', EVERY),
    ):  # fmt: skip
        done = docker.run(USABLE, Want(env=(), flags=(f"--gpus={asks}",)))
        assert usable(done) == gpus, (asks, done)


ATTACKS = {
    "a node under another name": ("--device=/run/other:/dev/null2",),
    "a GPU's node under a GPU's name": ("--device=/dev/nvidia1:/dev/nvidia7:r",),
    "a rule for one GPU": ("--device-cgroup-rule=c 195:1 r",),
    "a rule for every major": ("--device-cgroup-rule=c *:* rw",),
    "a rule for every major, mknod first": ("--device-cgroup-rule=c *:* mrw",),
    "a rule for one minor of every major": ("--device-cgroup-rule=c *:1 rwm",),
    "a rule for another driver of NVIDIA": ("--device-cgroup-rule=c 234:0 rw",),
    "a rule for every device of a driver": ("--device-cgroup-rule=c 236:* rw",),
    "a rule for a high minor of every major": ("--device-cgroup-rule=c *:2000 rwm",),
    "a rule for all types": ("--device-cgroup-rule=a *:* rwm",),
    "a rule for all types, with numbers": ("--device-cgroup-rule=a 1:1 m",),
    "--privileged": ("--privileged",),
    "--privileged, served already": ("--privileged", "-eNVIDIA_VISIBLE_DEVICES=void"),
    "another vendor's kind": ("--device=example.com/x=y",),
    "a listener of its seccomp profile": ("--security-opt=seccomp=/run/listener.json",),
    "a property of the unit": (
        "--annotation=org.systemd.property.DeviceAllow=[('/dev/nvidia1','rw')]",
    ),
    "the host's control groups": ("--volume=/sys/fs/cgroup:/x/sys/fs/cgroup",),
    "the host's /sys": ("--volume=/sys:/x/sys",),
    "the host's root": ("--volume=/:/x", "--pid=host"),
    "CAP_SYS_ADMIN": ("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined"),
    "/dev": ("--volume=/dev:/x", "--cap-add=MKNOD"),
    "the host's root, read-only": ("--volume=/:/x:ro", "--pid=host"),
    "a volume": (ways_out.of_volume("type=none", "o=bind", "device=/dev"),),
    "settings of the kernel": ("--volume=/proc/sys/kernel:/x",),
    "settings of the kernel, unmasked": ("--security-opt=systempaths=unconfined",),
    "settings of sysfs": ("--volume=/sys/kernel:/x",),
    "mounts that come later": ("--volume=/run/later:/x:rslave",),
    "a listener of crun": ("--annotation=run.oci.seccomp.receiver=/run/listener.sock",),
    "settings of CRIU": ("--annotation=org.criu.config=/run/criu.conf",),
    "a volume of debugfs": (ways_out.of_volume("type=debugfs", "device=debugfs"),),
    **ways_out.DOCKER,
    "its own root": ("--mount=type=bind,src=/proc/self/cwd,dst=/x",),
    "its own root, by a task": ("--mount=type=bind,src=/proc/self/task/../cwd,dst=/x",),
    "the folder of all roots": ("--volume=/var/lib/docker:/x",),
    "a volume of the folder of all roots": (
        ways_out.of_volume("type=none", "o=rbind", "device=/var/lib/docker"),
    ),
    "--gpus and a request": ("--gpus=device=1", "-eNVIDIA_VISIBLE_DEVICES=0"),
}
LISTENER = {"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/listener.sock"}
HARMLESS = ("/dev", "a volume")
"""The control group refuses the nodes."""
LEAVES = f"""\
mkdir -p /x/sys/fs/cgroup/devices; mount -t cgroup -o devices c /x/sys/fs/cgroup/devices
{ways_out.LEAVES}
"""
WAYS_OUT = (
    "the host's control groups", "the host's /sys", "the host's root", "CAP_SYS_ADMIN",
    *ways_out.DOCKER,
)  # fmt: skip
"""Here root can leave the control group. `ignore` does not hold it; see docs/policy.md."""
OTHER_KIND = """\
cdiVersion: 0.5.0
kind: example.com/x
devices:
- name: y
  containerEdits:
    deviceNodes: [{path: /dev/sound, hostPath: /dev/nvidia1, type: c, major: 195, minor: 1}]
"""


@pytest.mark.parametrize("default", ["deny", "ignore"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_reaches_a_gpu(attack: str, default: str, docker: DockerToday) -> None:
    docker.serve(by_hook=False)
    docker.settle(default)
    ways_out.prepare(docker.box)
    docker.box.call("mknod", "/run/other", "c", "195", "1")
    docker.box.write("/etc/cdi/other.yaml", OTHER_KIND)
    docker.box.write("/run/listener.json", json.dumps(LISTENER))
    nodes = "(: < /x/nvidia1) 2>&1; (: < /x/dev/nvidia1) 2>&1; ls /dev; true"
    leaves = LEAVES if default == "deny" else ""
    flags = ("--runtime=nvidia", *ATTACKS[attack])
    done = docker.run(f"{leaves}{USABLE}{nodes}", Want(env=(), flags=flags))
    assert usable(done) == "", done
    assert "No such device" not in done.stdout, done
    assert "nvidia1" not in done.stdout.splitlines(), done
    if attack in HARMLESS:
        assert done.returncode == 0, done
    elif default == "deny":
        assert "policy rule 'default' denies engine devices" in done.stderr or (
            "denies NVIDIA_VISIBLE_DEVICES" in done.stderr
        ), done
    elif any(words in attack for words in ("every major", "unit", "listener", "CRIU")):
        assert "cannot be taken out alone" in done.stderr, done
    else:
        assert done.returncode == 0, done


@pytest.mark.parametrize("attack", WAYS_OUT)
def test_without_a_policy_a_way_out_of_the_control_group_is_one(
    attack: str, docker: DockerToday
) -> None:
    """Else the test above would pass for want of an attack."""
    docker.serve(by_hook=False)
    docker.rules("")
    ways_out.prepare(docker.box)
    flags = ("--runtime=nvidia", "--security-opt=apparmor=unconfined", *ATTACKS[attack])
    done = docker.run(LEAVES + USABLE, Want(env=(), flags=flags))
    assert usable(done) == EVERY, done


def test_exec_and_update_give_no_gpu(docker: DockerToday) -> None:
    docker.serve(by_hook=False)
    flags = ("--runtime=nvidia", "--security-opt=seccomp=unconfined")
    privileged = ("exec", "--privileged", "NAME", "/bin/sh", "-c", LEAVES + USABLE)
    for policy in ("", DENY + CHECKED):
        docker.rules(policy)
        name = docker.keep(Want(env=(), flags=flags))
        assert docker.docker("update", "--pids-limit=99", name).returncode == 0
        done = docker.docker(*(name if word == "NAME" else word for word in privileged))
        assert usable(done) == ("" if policy else EVERY), done
        assert ("denies engine devices" in done.stdout + done.stderr) == bool(policy), done
        done = docker.docker("exec", name, "/bin/sh", "-c", f"{USABLE}echo started")
        assert done.returncode == 0, done
        assert "started" in done.stdout, done
        assert usable(done) == "", done
        docker.remove(name)


def test_a_container_without_a_gpu_is_handed_over(docker: DockerToday) -> None:
    """The launcher finds none of its words in Docker's own config.json."""
    docker.serve(by_hook=False)
    docker.settle()
    compiled = "/run/nvct/config.json"
    assert docker.box.call("rm", compiled).returncode == 0
    flags = ("--runtime=nvidia", "--volume=/run/x:/x", "--volume=data:/y", "--cap-add=SYS_PTRACE")
    done = docker.run("true; echo started", Want(env=(), flags=flags))
    assert done.stdout == "started\n", done
    assert docker.box.call("test", "-e", compiled).returncode  # Python would write it
    done = docker.run("true; echo started", Want(env=(), flags=(*flags, "--pid=host")))
    assert "denies engine devices" in done.stderr, done
    assert docker.box.call("test", "-e", compiled).returncode == 0
    conf = docker.box.read("/run/nvct/launcher.conf")
    words = [line.partition("\t")[2] for line in conf.splitlines() if line.startswith("word")]
    name = docker.keep(Want(env=()))
    found = docker.docker("inspect", "--format={{.Id}}", name).stdout.strip()
    folders = "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby"
    text = docker.box.read(f"{folders}/{found}/config.json")
    docker.remove(name)
    assert len(words) > len(ENGINE_DEVICES)
    assert '"devices":[{"allow":false,"access":"rwm"}' in text, text
    assert [word for word in words if word in text.replace(found, "")] == []


def test_the_table_is_in_the_documents() -> None:
    text = Path(__file__).parents[2].joinpath("docs/platforms.md").read_text(encoding="utf-8")
    assert TABLE in text, f"put this into docs/platforms.md:\n{TABLE}"


NRI = "/run/nri/nri.sock"
NRI_LOG = "nri.log"
BY_VARIABLE = Want(env=("NVIDIA_VISIBLE_DEVICES=0",), flags=("--runtime=runc",))
BY_NAME = Want(env=(), flags=("--runtime=runc", "--device=nvidia.com/gpu=0"))


def test_nri_of_docker_lets_the_plugin_refuse_variables_alone(docker: DockerToday) -> None:
    """Docker shows its plugins variables and annotations, and neither devices nor CDI names."""
    former, log = docker.dockerd, docker.box.work / NRI_LOG
    docker.dockerd = (*former, f"--nri-opts=enable=true,socket-path={NRI}")
    docker.rules(DENY + CHECKED)
    log.write_text("")
    docker.again()
    words = [sys.executable, "-m", "nvct.nri.main", f"--nri-socket={NRI}", "--nri-env"]
    process = docker.box.start(words, NRI_LOG)
    try:
        docker.box.until(lambda: "connected: " in log.read_text(), NRI_LOG)
        refused = docker.run("true", BY_VARIABLE)
        unseen = docker.run(USABLE, BY_NAME)
        plain = docker.run("true", Want(env=(), flags=("--runtime=runc",)))
        docker.rules(DENY.replace("deny", "allow"))
        given = docker.run("true", BY_VARIABLE)
    finally:
        process.terminate()
        process.wait()
        docker.dockerd = former
        docker.again()
    said = log.read_text()
    assert "docker 29." in said
    assert refused.returncode == 125, (refused, said)
    assert "nvct: policy rule 'default' denies" in refused.stderr, (refused, said)
    assert "usable=0" in unseen.stdout, (unseen, said)
    assert plain.returncode == 0, (plain, said)
    assert given.returncode == 125, (given, said)
    assert "unsupported container adjustments" in given.stderr, (given, said)
