# SPDX-License-Identifier: Apache-2.0
"""No command of Podman gives a GPU under a policy that denies what an engine gives."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nvct.paths import CONFIG_ENV, RUN_DIR_ENV
from tests.engines import configured, releases, ways_out
from tests.engines.box import PROGRAMS, Box
from tests.engines.daemons import IMAGE, Done, Podman
from tests.engines.engines import CONFIG

pytestmark = pytest.mark.slow
SHIM = PROGRAMS / "nvidia-container-runtime"
NEW_S = 2.1
"""After it, the launcher trusts a file's times."""
POLICY = '[nvct.policy]\ndefault = "deny"\nengine-devices = "checked"\n'
USABLE = f"""\
(mkdir -p /x/sys/fs/cgroup/devices; mount -t cgroup -o devices c /x/sys/fs/cgroup/devices) 2>/dev/null
{ways_out.LEAVES}
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
    **{name: (*flags, "--cap-add=MKNOD") for name, flags in ways_out.PODMAN.items()},
    "CAP_SYS_ADMIN": ("--cap-add=SYS_ADMIN,MKNOD",),
    "--privileged": ("--privileged",),
    "--privileged, served already": ("--privileged", "--env=NVIDIA_VISIBLE_DEVICES=void"),
}


@pytest.fixture(scope="module", params=[releases.of_release("trixie"), *releases.in_full("forky")])
def podman(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Podman:
    podman = configured.started(lambda: Podman(machine_of(request.param)))
    ways_out.prepare(podman.box)
    groups = ("--opt=type=none", "--opt=o=rbind", f"--opt=device={ways_out.GROUPS}")
    of_type = ("--opt=type=cgroup", "--opt=o=devices", "--opt=device=cgroup")
    settings = ("--opt=type=debugfs", "--opt=device=debugfs", "debug")
    for words in (
        ("volume", "create", *settings),
        ("volume", "create", *groups, "groups"),
        ("volume", "create", *of_type, "of-type"),
        ("create", "--name=holder", "--volume=/run/root:/x", IMAGE, "true"),
    ):
        done = podman.podman(*words)
        assert done.returncode == 0, done
    return podman


def configuration(podman: Podman, policy: str = "", runtime: str = "") -> None:
    """Write config.toml; with a policy, also have the launcher's words written.

    Args:
        runtime: the low-level one.
    """
    table = "[nvidia-container-runtime]\n"
    base = podman.box.read(CONFIG).partition("[nvct.policy]")[0].partition(table)[0]
    lines = base.splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("debug"))  # or no word is used
    text += f'{table}runtimes = ["{runtime}"]\n' if runtime else ""
    podman.box.write(CONFIG, text + policy)
    if policy:
        time.sleep(NEW_S)
        podman.run("true", f"--runtime={SHIM}", "--device=nvidia.com/gpu=1")


@contextmanager
def kept(podman: Podman, *flags: str) -> Iterator[str]:
    """Start a container that runs; it is removed afterwards."""
    name = "kept"
    words = podman.words("sleep 1000", f"--runtime={SHIM}", "--detach", f"--name={name}", *flags)
    done = podman.podman(*words)
    assert done.returncode == 0, done
    try:
        yield name
    finally:
        podman.podman("rm", "--force", "--time=0", name)


def is_refused(done: Done) -> None:
    assert "usable" not in done.stdout, done
    assert "policy rule 'default' denies engine devices" in done.stderr, done


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_an_exec_gives_no_gpu(runtime: str, podman: Podman) -> None:
    """With CAP_SYS_ADMIN, root would leave the control group."""
    configuration(podman, runtime=runtime)
    privileged = ("exec", "--privileged", "kept", "/bin/sh", "-c", USABLE)
    with kept(podman, "--cap-add=MKNOD"):
        assert "usable" in podman.podman(*privileged).stdout
    with kept(podman, "--cap-add=MKNOD", "--pid=host"):
        configuration(podman, POLICY, runtime)
        is_refused(podman.podman(*privileged))  # the container is older than the policy
    with kept(podman, "--cap-add=MKNOD"):
        is_refused(podman.podman(*privileged))
        done = podman.podman("exec", "kept", "/bin/sh", "-c", f"{USABLE}echo started")
        assert done.stdout == "started\n", done


def test_an_update_gives_no_gpu_back(podman: Podman) -> None:
    """Podman passes the device rules of its own record to crun, which applies them."""
    policy = POLICY.replace("deny", "ignore")
    update = ("update", "--pids-limit=99", "kept")
    given = ("--device=/dev/nvidia1", "--cap-add=MKNOD")
    configuration(podman, policy, "crun")
    with kept(podman, *given):
        assert podman.podman(*update).returncode == 0
        done = podman.podman("exec", "kept", "/bin/sh", "-c", f"{USABLE}echo started")
        assert done.stdout == "started\n", done
        limit = podman.podman("exec", "kept", "cat", "/sys/fs/cgroup/pids/pids.max")
        assert limit.stdout == "99\n", limit


def test_a_user_namespace_without_the_hosts_root_starts_and_gets_no_gpu(podman: Podman) -> None:
    """There, Podman binds the host's /sys; its files are of the host's root."""
    configuration(podman, POLICY)
    maps = ("--network=host", "--uidmap=0:100000:65536", "--cap-add=all")
    for more in ((), ("--volume=/sys/fs/cgroup:/x/sys/fs/cgroup",), ("--volume=/proc:/x/proc",)):
        words = podman.words(f"{USABLE}echo started", f"--runtime={SHIM}", *maps, *more)
        done = podman.podman(*(word for word in words if word != "--network=none"))
        assert done.stdout == "started\n", done


IN_NAMESPACES = f"""\
for process in /proc/[0-9]*; do
  groups=$process/root/sys/fs/cgroup/devices
  [ -e $groups ] && echo $$ > $groups/cgroup.procs
done 2>/dev/null
{USABLE}
"""


@pytest.mark.parametrize("kind", ["pid", "cgroup"])
def test_a_namespace_that_a_user_of_the_host_made_gives_no_gpu(kind: str, podman: Podman) -> None:
    """Root is on the host by /proc/PID/root there, or by the control groups of version 2."""
    user = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
    flag = "--cgroupns=" if kind == "cgroup" else "--pid="
    made = ("unshare", "--user", "--pid", "--fork", "--kill-child", "--cgroup", "sleep", "600")
    outer = podman.box.start([*user, *made], "namespaces.log")
    try:
        children = ("pgrep", "-u", "1000", "-x", "sleep")
        podman.box.until(lambda: bool(podman.box.call(*children).stdout), "sleep")
        process = podman.box.call(*children).stdout.split()[0]
        attack = f"{flag}ns:/proc/{process}/ns/{kind}"
        for policy in ("", POLICY):
            configuration(podman, policy)
            more = ("--cap-add=MKNOD,SYS_PTRACE", attack)
            done = podman.run(IN_NAMESPACES, f"--runtime={SHIM}", *more)
            if policy:
                is_refused(done)
            elif kind == "pid":
                assert "usable /n1" in done.stdout, done
    finally:
        podman.box.call("pkill", "-KILL", "-u", "1000", "-x", "sleep")
        outer.wait()


def test_a_node_that_nobody_sees_is_no_gpu_where_podman_refuses_nothing(podman: Podman) -> None:
    """Podman 5.4 writes no device rule for a user namespace; crun then refuses nothing."""
    configuration(podman, runtime="crun")
    made = "mkdir -p /srv/deep/er; rm -f /srv/deep/er/n; mknod -m 666 /srv/deep/er/n c 195 1"
    assert podman.box.call("sh", "-c", made).returncode == 0
    maps = ("--network=host", "--uidmap=0:100000:65536", "--volume=/srv:/x:dev")
    script = "(: < /x/deep/er/n) 2>&1; : < /dev/null; : < /dev/zero; echo started"
    words = podman.words(script, f"--runtime={SHIM}", *maps)
    words = [word for word in words if word != "--network=none"]
    usable = podman.podman(*words)
    if "5.4" in podman.podman("--version").stdout:
        assert "No such device" in usable.stdout, usable
    for policy in (POLICY, POLICY.replace("deny", "ignore")):
        configuration(podman, policy, "crun")
        done = podman.podman(*words)
        assert "not permitted" in done.stdout, done
        assert "started" in done.stdout, done


@pytest.mark.parametrize("attack", ATTACKS)
def test_podman_gives_no_gpu(attack: str, podman: Podman) -> None:
    def run() -> Done:
        return podman.run(USABLE, f"--runtime={SHIM}", *ATTACKS[attack])

    configuration(podman)
    free = run()
    assert free.returncode == 0, free
    assert "usable" in free.stdout, free
    configuration(podman, POLICY)
    is_refused(run())


PLAYED: dict[str, dict[str, Any]] = {
    "a node by its limit": {"resources": {"limits": {"podman.io/device=/dev/nvidia1": 1}}},
    "CDI by its limit": {"resources": {"limits": {"podman.io/device=nvidia.com/gpu=1": 1}}},
    "privileged": {"securityContext": {"privileged": True}},
    "a node by its path": {"volumes": {"/dev/nvidia1": "/dev/nvidia1"}},
    "the host's /dev": {"volumes": {"/x": "/dev"}, "capabilities": ["MKNOD"]},
    "the host's root": {"volumes": {"/x": "/"}, "capabilities": ["MKNOD"]},
    "control groups": {
        "volumes": {"/x/sys/fs/cgroup": "/sys/fs/cgroup"},
        "capabilities": ["MKNOD"],
    },
    "CAP_SYS_ADMIN": {"capabilities": ["MKNOD", "SYS_ADMIN"]},
    "the host's processes": {"hostPID": True, "capabilities": ["MKNOD", "SYS_PTRACE"]},
    "annotations": {
        "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=1", "run.oci.keep_original_groups": "1"}
    },
}


def played(given: dict[str, Any]) -> dict[str, Any]:
    """Return a pod for `podman kube play`, whose container tries what USABLE says."""
    volumes = given.get("volumes", {})
    context = {"capabilities": {"add": given.get("capabilities", [])}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "played", "annotations": given.get("annotations", {})},
        "spec": {
            "restartPolicy": "Never", "hostPID": given.get("hostPID", False), "hostNetwork": True,
            "volumes": [{"name": f"v{n}", "hostPath": {"path": path}} for n, path in enumerate(volumes.values())],
            "containers": [{
                "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", f"{USABLE}echo started"],
                "resources": given.get("resources", {}),
                "securityContext": {**context, **given.get("securityContext", {})},
                "volumeMounts": [{"name": f"v{n}", "mountPath": path} for n, path in enumerate(volumes)],
            }],
        },
    }  # fmt: skip


@pytest.mark.parametrize("way", PLAYED if releases.FULL else ["privileged", "annotations"])
def test_a_pod_of_yaml_gets_no_gpu(way: str, podman: Podman) -> None:
    waits = '["/bin/sh", "-c", "trap exit TERM; while :; do sleep 1; done"]'
    sleeps = ("commit", "--quiet", f"--change=CMD {waits}", "holder", "infra")
    assert podman.podman(*sleeps).returncode == 0
    infra = "[engine]\ninfra_image = 'localhost/infra'\n"
    podman.box.write("/etc/containers/containers.conf.d/infra.conf", infra)

    def play() -> str:
        podman.box.write("/run/played.yaml", json.dumps(played(PLAYED[way])))
        words = ("kube", "play", "--wait=false", "/run/played.yaml")
        done = podman.podman(f"--runtime={SHIM}", *words)
        podman.podman("wait", "played-main")
        said = podman.podman("logs", "played-main").stdout
        podman.podman("pod", "rm", "--force", "--time=0", "played")
        return done.stdout + done.stderr + said

    configuration(podman)
    free = play()
    configuration(podman, POLICY)
    checked = play()
    print(free, checked)
    assert "started" in free
    assert "usable" not in checked
    assert "policy rule 'default' denies" in checked or "usable" not in free


SEES = {
    "processes": ("--pid=host",),
    "/proc": ("--volume=/proc:/x:ro",),
    "root, read-only": ("--volume=/:/x:ro",),
    "processes, without capabilities": ("--pid=host", "--cap-drop=all"),
    "settings": ("--security-opt=unmask=/proc/sys",),
    "settings, by a pattern": ("--security-opt=unmask=/proc/*",),
    "everything unmasked": ("--security-opt=unmask=ALL",),
    "settings of buses": ("--security-opt=unmask=/proc/bus",),
    "its own root": ("--volume=/proc/self/cwd:/v/y/z",),
    "its own root, by a task": ("--mount=type=bind,src=/proc/self/task/../cwd,dst=/v/y/z",),
    "its own root, by a link": ("--volume=/run/cwd:/v/y/z",),
    "the folder of all roots": ("--volume=/var/lib/containers:/v/y/z",),
    "a descriptor": ("--volume=/proc/self/fd/1:/v/y/z",),
    "a root of its own": ("--volume=/run/r:/v/y/z", "--rootfs"),
    "a volume of settings": ("--volume=debug:/x",),
    "mounts that come later": ("--volume=/etc:/x:rslave",),
    "a control group above its own": ("--annotation=run.oci.delegate-cgroup=../..",),
    "a listener of crun": ("--annotation=run.oci.seccomp.receiver=/run/x",),
    "settings of CRIU": ("--annotation=org.criu.config=/run/x",),
    "a remount": ("--security-opt=proc-opts=remount",),
    "a class of service": ("--rdt-class=../cgroup/devices",),
    "numbers that crun cuts": ("--device-cgroup-rule=c 4294967491:0 rwm",),
}


@pytest.mark.parametrize("way", SEES)
def test_who_sees_the_host_is_refused(way: str, podman: Podman) -> None:
    """With /proc/PID/root of a process of any user, root is on the host."""
    configuration(podman, POLICY)
    podman.box.call("ln", "-sfn", "/proc/self/cwd", "/run/cwd")
    podman.box.call("mkdir", "-p", "/run/r/root")
    words = podman.words("true", f"--runtime={SHIM}", *SEES[way])
    done = podman.podman(
        *("/run/r/root" if w == IMAGE and "--rootfs" in words else w for w in words)
    )
    is_refused(done)
    assert ", given by " in done.stderr, done


UP = "../../../../../../../../../.."


def test_a_folder_that_is_no_control_group_gives_no_gpu(podman: Podman) -> None:
    """crun takes `..` in it at its word, and writes into files that another container made."""
    create = (
        f"--runtime={SHIM}", "create", "--network=none", "--cap-add=MKNOD",
        f"--cgroup-parent={UP}/run/fake", IMAGE, "/bin/sh", "-c", USABLE,
    )  # fmt: skip
    for policy in ("", POLICY):
        configuration(podman, policy, "crun")
        name = podman.podman(*create).stdout.strip()
        for file in ("devices.allow", "devices.deny", "cpuset.cpus", "cpuset.mems"):
            podman.box.write(f"/run/fake/libpod-{name}/{file}", "0\n")
        done = podman.podman("start", "--attach", name)
        podman.podman("rm", "--force", name)
        if policy:
            is_refused(done)
        else:
            assert "usable /n1" in done.stdout, done


BY_API: dict[str, dict[str, Any]] = {
    "a relative source": {"type": "none", "source": f"{UP}/sys/fs/cgroup", "options": ["rbind"]},
    "of no type": {"type": "", "source": f"{UP}/sys/fs/cgroup", "options": ["rbind"]},
    "of any type": {"type": "foo", "source": f"{UP}/sys/fs/cgroup", "options": ["rbind"]},
    "in its root": {"type": "bind", "source": "proc", "options": ["rbind"]},
    "read-only or not": {"source": "/sys/fs/cgroup/devices", "options": ["bind", "ro", "rrw"]},
    "all read-only or not": {"source": "/sys/fs/cgroup", "options": ["rbind", "rro", "rrw"]},
    "cpuset": {"type": "cpuset", "source": "cpuset", "options": []},
    "a writable /sys": {"type": "sysfs", "source": "sysfs", "options": ["rw"]},
    "its only /proc": {"destination": "/x", "type": "proc", "source": "proc"},
    "the last, a bind by an annotation": {
        "destination": "/v/w/x/y/z", "type": "debugfs", "source": "/none", "options": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_mount_that_only_the_api_can_ask_for_is_refused(runtime: str, podman: Podman) -> None:
    configuration(podman, POLICY, runtime)
    socket, url = "/run/podman-test.sock", "http://d/v4.0.0/libpod/containers/create"
    serve = (f"--runtime={SHIM}", "system", "service", "--time=0", f"unix://{socket}")
    service = podman.box.start(["podman", "--storage-driver=overlay", *serve], "service.log")
    try:
        podman.box.until(lambda: podman.box.accepts(socket), "service.log")
        for name, mount in BY_API.items():
            spec = {
                "image": IMAGE, "name": "by-api", "command": ["true"],
                "netns": {"nsmode": "none"}, "cgroup_parent": f"/{podman.box.cgroup}",
                "annotations": {"x": "bind"},
                "mounts": [
                    {"destination": "/v/y/z", "type": "none", **mount},
                    {"destination": "/proc", "type": "tmpfs", "source": "tmpfs"},
                ],
            }  # fmt: skip
            post = ("--header", "Content-Type: application/json", "--data", json.dumps(spec), url)
            made = podman.box.call("curl", "--silent", "--unix-socket", socket, *post)
            assert '"Id"' in made.stdout, (name, made)
            done = podman.podman("start", "--attach", "by-api")
            podman.podman("rm", "--force", "by-api")
            is_refused(done)
    finally:
        service.terminate()
        service.wait()


@pytest.mark.parametrize("name", [CONFIG_ENV, "XDG_CONFIG_HOME", RUN_DIR_ENV])
def test_who_calls_podman_cannot_choose_another_policy(name: str, podman: Podman) -> None:
    """The folder is one of root's, as a container can make it in a volume."""
    configuration(podman)
    free = "/run/free/nvidia-container-runtime/config.toml"
    podman.box.write(free, podman.box.read(CONFIG))
    podman.box.call("mkdir", "-p", "-m", "700", "/run/free/nvct")
    configuration(podman, POLICY)
    values = {CONFIG_ENV: free, "XDG_CONFIG_HOME": "/run/free", RUN_DIR_ENV: "/run/free/nvct"}
    words = podman.words(USABLE, f"--runtime={SHIM}", "--device=nvidia.com/gpu=1")
    if name == RUN_DIR_ENV:
        conf = podman.box.read("/run/nvct/launcher.conf")
        lines = [line for line in conf.splitlines() if not line.startswith(("word", "host"))]
        podman.box.write(
            "/run/free/nvct/launcher.conf",
            "\n".join([*lines[:-1], "word\tnothing-has-it", "end\n"]),
        )
    is_refused(podman.podman(*words, env={name: values[name]}))


def test_an_ordinary_container_starts_without_python(podman: Podman) -> None:
    configuration(podman, POLICY)
    compiled = "/run/nvct/config.json"
    assert podman.box.call("rm", compiled).returncode == 0
    words = (f"--runtime={SHIM}", "--volume=/etc:/x", "--volume=data:/y", "--cap-add=SYS_PTRACE")
    done = podman.run("echo started", *words)
    assert done.stdout == "started\n", done
    assert podman.box.call("test", "-e", compiled).returncode  # Python would write it


def test_podman_makes_no_container_without_a_cgroup_by_this_runtime(podman: Podman) -> None:
    """There, no device rule would hold."""
    words = podman.words("true", f"--runtime={SHIM}", "--cgroups=disabled")
    done = podman.podman(*(w for w in words if not w.startswith("--cgroup-parent")))
    assert "NoCgroups" in done.stderr, done
