# SPDX-License-Identifier: Apache-2.0
"""What of the host root in a container can reach, whatever config.json calls it."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nvct.container import host_view
from nvct.container.host_view import seen_nodes, way_out
from nvct.oci.bundle import Bundle

PRIVATE = [{"type": "pid"}, {"type": "cgroup"}]
V1 = "{n} 1 0:29 {root} {target} {options} shared:7 - cgroup cgroup rw,devices"
V2 = "{n} 1 0:30 {root} {target} {options} - cgroup2 cgroup2 rw,nsdelegate"
PROCESSES = "{n} 1 0:22 {root} {target} {options} - proc proc rw"
KERNEL = "{n} 1 0:25 {root} {target} {options} - %s x rw"
OTHER = "{n} 1 8:1 {root} {target} {options} - ext4 /dev/vda1 rw"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
DOCKERS = ("CHOWN", "DAC_OVERRIDE", "MKNOD", "SETUID", "KILL")
"""Some of the capabilities that Docker gives."""


class Machine:
    def __init__(self, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work = work
        self.proc = work / "proc"
        self.own = self.proc / "self"
        self.own.mkdir(parents=True)
        for name in ("fd", "ns"):
            (self.own / name).symlink_to(f"/proc/self/{name}")
        self.lines: list[str] = []
        self.mount(OTHER, "/")
        monkeypatch.setattr(host_view, "PROC", str(self.proc))

    def mount(self, line: str, target: str | Path, options: str = "rw", root: str = "/") -> Path:
        self.lines.append(
            line.format(n=len(self.lines), root=root, target=target, options=options)
        )
        (self.own / "mountinfo").write_text("\n".join([*self.lines, ""]))
        return Path(target)

    def folder(self, name: str) -> Path:
        path = self.work / name
        path.mkdir(parents=True)
        return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def leaves(*mounts: dict[str, Any], **more: Any) -> bool:
    return bool(way(*mounts, **more))


def way(
    *mounts: dict[str, Any],
    namespaces: list[dict[str, str]] | None = None,
    capabilities: tuple[str, ...] = DOCKERS,
    root: str = "rootfs",
    held: tuple[str, ...] = ("/proc/bus", "/proc/sys"),
) -> str:
    document = {
        "root": {"path": root},
        "process": {"capabilities": {"bounding": [f"CAP_{name}" for name in capabilities]}},
        "mounts": list(mounts),
        "linux": {
            "namespaces": PRIVATE if namespaces is None else namespaces,
            "readonlyPaths": held,
        },
    }
    return way_out(Bundle("config.json", json.dumps(document)))


def bind(source: Path | str, *options: str) -> dict[str, Any]:
    options = ("rbind", *(options or ("rw",)))
    return {"destination": "/x", "source": str(source), "type": "bind", "options": options}


@pytest.mark.parametrize("line", [V1, V2])
def test_a_source_is_known_by_what_it_shows(line: str, machine: Machine) -> None:
    groups = machine.mount(line, machine.folder("sys/fs/cgroup"))
    (groups / "docker").mkdir()
    (groups / "cgroup.procs").touch()
    links = machine.folder("links")
    for name, target in (("groups", groups), ("above", groups.parent), ("twice", links / "above")):
        (links / name).symlink_to(target)
    for source in (
        groups, groups / "docker", groups / "cgroup.procs", groups.parent, machine.work,
        "/", f"//{groups}/.", links / "groups", links / "above", links / "twice",
        links / "above" / "cgroup" / "docker",
    ):  # fmt: skip
        assert leaves(bind(source)), source
        assert leaves(root=str(source)), source
    for source in (links, machine.folder("sys/fs/cgroup2"), groups / "missing"):
        assert not leaves(bind(source)), source
        assert not leaves(root=str(source)), source


def test_a_volume_and_a_mount_below_are_known_by_the_kernel(machine: Machine) -> None:
    machine.mount(V1, machine.folder("volumes/groups/_data"))
    machine.mount(OTHER, machine.folder("volumes/files/_data"))
    machine.mount(V2, str(machine.folder("deep/with space/x")).replace(" ", "\\040"))
    assert leaves(bind(machine.work / "volumes/groups/_data"))
    assert leaves(bind(machine.work / "deep"))
    assert leaves(bind(machine.work / "deep/with space"))
    assert not leaves(bind(machine.work / "volumes/files/_data"))


def test_what_a_root_has_below_the_containers_own_mounts_cannot_be_reached(
    machine: Machine,
) -> None:
    """A createContainer hook sees them there already; and Podman has --rootfs /."""
    root = machine.folder("root")
    machine.mount(PROCESSES, root / "proc")
    machine.mount(V2, root / "sys/fs/cgroup")
    own: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
    ]
    assert not leaves(*own, root=str(root))
    assert leaves(own[0], root=str(root))
    assert leaves(*own, bind(root))
    machine.mount(V2, root / "other")
    assert leaves(*own, root=str(root))


def test_read_only_holds_where_no_writable_mount_is_below(machine: Machine) -> None:
    groups = machine.mount(V1, machine.folder("sys/fs/cgroup"))
    assert not leaves(bind(groups, "ro"))
    assert leaves(bind(groups.parent, "ro"))
    assert not leaves(bind(groups.parent, "ro", "rro"))
    other = machine.mount(V1, machine.folder("other/cgroup"), "ro,nosuid")
    assert not leaves(bind(other))
    assert not leaves(bind(other.parent))


def test_read_only_does_not_hold_version_2(machine: Machine) -> None:
    """Clone3 with CLONE_INTO_CGROUP asks for no write access to the mount."""
    groups = machine.mount(V2, machine.folder("sys/fs/cgroup"), "ro")
    assert leaves(bind(groups, "ro"))
    assert leaves(bind(groups.parent, "ro", "rro"))


MAPS: dict[str, Any] = {
    "of root": ([{"containerID": 0, "hostID": 0, "size": 65536}], True),
    "of root to a user": ([{"containerID": 1000, "hostID": 0, "size": 1}], True),
    "unknown": ([], True),
    "of others": ([{"containerID": 0, "hostID": 100000, "size": 65536}], False),
}


@pytest.mark.parametrize("maps", MAPS)
def test_root_of_a_user_namespace_writes_no_file_of_the_hosts_root(
    maps: str, machine: Machine
) -> None:
    mappings, is_root = MAPS[maps]
    groups = machine.mount(V1, machine.folder("sys/fs/cgroup"))

    def of(*capabilities: str, mounts: Any = (), path: str = "") -> bool:
        document = {
            "process": {"capabilities": {"bounding": [f"CAP_{name}" for name in capabilities]}},
            "mounts": list(mounts),
            "linux": {
                "namespaces": [*PRIVATE, {"type": "user", "path": path}],
                "uidMappings": mappings,
            },
        }
        return bool(way_out(Bundle("config.json", json.dumps(document))))

    assert of("SYS_ADMIN") == is_root
    assert of("SYS_ADMIN", mounts=[bind(groups, "ro")]) == is_root  # it can remount
    assert of(*DOCKERS, mounts=[bind(groups)]) == is_root
    assert not of(*DOCKERS, mounts=[bind(groups, "ro")])
    assert of("SYS_ADMIN", path="/proc/1/ns/user")  # whatever the mappings say


@pytest.mark.parametrize("kind", ["binfmt_misc", "configfs", "debugfs", "tracefs"])
def test_settings_of_the_kernel_are_known_by_their_kind(kind: str, machine: Machine) -> None:
    volume = machine.mount(KERNEL % kind, machine.folder("volumes/settings/_data"))
    assert leaves(bind(volume))
    assert not leaves(bind(volume, "ro"))
    assert leaves({"destination": "/x", "type": kind, "source": kind})


def test_sysfs_is_held_only_read_only(machine: Machine) -> None:
    system = machine.mount(KERNEL % "sysfs", machine.folder("sys"))
    for name in ("kernel/mm", "class/net"):
        (system / name).mkdir(parents=True)
    for source in (system, system / "kernel", system / "kernel/mm", system / "class"):
        assert leaves(bind(source)), source
    assert not leaves(bind(system / "kernel", "ro"))
    (system / "fs/other").mkdir(parents=True)
    machine.mount(OTHER, system / "fs/other")
    assert not leaves(bind(system / "fs/other"))  # such as bpf
    machine.mount(KERNEL % "sysfs", system)
    assert leaves(bind(system / "fs/other"))  # it is covered
    part = machine.mount(KERNEL % "sysfs", machine.folder("volume"), root="/module")
    assert leaves(bind(part))
    own = {"destination": "/sys", "type": "sysfs", "source": "sysfs"}
    assert leaves({**own, "options": ["nosuid", "rw"]})
    assert not leaves({**own, "options": ["nosuid", "ro"]})


@pytest.mark.parametrize("held", [(), ("/proc/sys/kernel", "/proc/bus"), ("/proc/sys",)])
def test_settings_that_no_runtime_makes_read_only_are_a_way_out(
    held: tuple[str, ...], machine: Machine
) -> None:
    assert machine.lines
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    assert not leaves(proc)
    assert leaves(proc, held=held)
    assert not leaves({**proc, "options": ["nosuid", "ro"]}, held=held)


@pytest.mark.parametrize("options", [("ro", "rrw"), ("rro", "rrw"), ("rro", "rw"), ("rw", "ro")])
def test_read_only_holds_only_if_no_option_takes_it_back(
    options: tuple[str, ...], machine: Machine
) -> None:
    """Runc applies them all, those with an r after the others."""
    groups = machine.mount(V1, machine.folder("sys/fs/cgroup"))
    assert leaves(bind(groups, *options))
    assert leaves({"destination": "/sys", "type": "sysfs", "options": list(options)})


@pytest.mark.parametrize("kind", ["none", "", "bind", "foo", "proc", "tmpfs", None])
def test_a_relative_source_of_a_bind_is_taken_from_a_folder_of_the_runtime(
    kind: str | None, machine: Machine
) -> None:
    assert machine.lines
    up = {"destination": "/x", "type": kind, "source": "../../../sys", "options": ["rbind"]}
    for mount in (up, {**up, "source": "proc"}, {**up, "options": ["bind", "ro"]}):
        assert leaves(mount), mount
    assert way(up) == "the mount of the relative path ../../../sys at /x"
    for no_source in ({}, {"source": ""}, {"source": None}):  # runc's bundle, and crun's type
        assert leaves({"destination": "/x", "type": kind, "options": ["rbind"], **no_source})


def test_a_mount_by_a_name_is_no_bind(machine: Machine) -> None:
    assert machine.lines
    for kind in ("tmpfs", "devpts", "mqueue", "cgroup"):
        assert not leaves({"destination": "/x", "type": kind, "source": kind}), kind
        assert not leaves({"destination": "/x", "type": kind}), kind


@pytest.mark.parametrize("kind", ["cpuset", "devtmpfs", "nfsd"])
def test_a_kind_of_mount_that_no_container_needs_counts(kind: str, machine: Machine) -> None:
    assert machine.lines
    assert way({"destination": "/x", "type": kind, "source": kind}) == f"the mount of {kind} at /x"
    assert not leaves({**bind(machine.work), "type": kind})


def test_a_remount_counts(machine: Machine) -> None:
    """It makes a mount writable that the runtime has made read-only."""
    assert machine.lines
    again = {"destination": "/sys", "type": "tmpfs", "source": "x", "options": ["remount", "rw"]}
    assert way(again) == "the remount of /sys"


@pytest.mark.parametrize("option", ["slave", "rslave", "shared", "rshared"])
def test_a_mount_into_which_others_come_later_counts(option: str, machine: Machine) -> None:
    """An engine mounts a volume before nvct refuses the container that asks for it."""
    later = bind(machine.work, "ro", option)
    assert way(later) == f"the mount of {machine.work} at /x, into which later mounts propagate"
    assert not leaves(bind(machine.work, "ro", "rprivate"), bind(machine.work, "private"))
    plugins = "/run/docker/plugins"  # dockerd gives each plugin its folder there
    assert not leaves(bind(f"{plugins}/0123", option))
    for other in (plugins, f"{plugins}/../x", f"{plugins}/0123/../../../x"):
        assert leaves(bind(other, option)), other


def test_a_source_through_proc_is_another_for_the_runtime(machine: Machine) -> None:
    processes = machine.mount(PROCESSES, machine.folder("host/proc"))
    other, task = machine.folder("other"), processes / "self/task"
    task.mkdir(parents=True)
    (processes / "self/cwd").symlink_to(other)
    links = machine.folder("links")
    (links / "cwd").symlink_to(processes / "self/cwd")
    (links / "twice").symlink_to("../links/cwd/.")
    for source in (
        processes / "self/cwd", processes / "self/cwd/missing", f"{task}/../cwd",
        processes / "self/fd/99", links / "cwd", links / "twice", processes / "9/root/etc",
    ):  # fmt: skip
        assert way(bind(source, "ro")).endswith(" at /x, which has the host's /proc"), source
        assert leaves(root=str(source)), source
    assert not leaves(bind(other), bind(links))


def test_a_mount_of_the_containers_own_root_has_its_proc_unmasked(machine: Machine) -> None:
    root, other = machine.folder("containers/one/rootfs"), machine.folder("other")
    (root / "etc").mkdir()
    (other / "link").symlink_to(root)
    for source in (root, root / "etc", root.parent, root.parents[1], other / "link", "/"):
        assert way(bind(source, "ro"), root=str(root)).endswith(
            ", which has the container's own root"
        )
    for source in (other, machine.folder("containers/one/rootfs2"), machine.folder("con")):
        assert not leaves(bind(source), root=str(root)), source
    machine.mount(OTHER, machine.folder("volumes/1"), root=str(root.parent))
    machine.mount(OTHER, machine.folder("volumes/2"), root=str(other))
    assert leaves(bind(machine.work / "volumes/1"), root=str(root))
    assert leaves(bind(machine.work / "volumes"), root=str(root))
    assert not leaves(bind(machine.work / "volumes/2"), root=str(root))


def test_a_root_may_be_relative_to_the_bundle(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine.folder("bundle/rootfs")
    document = json.dumps({
        "root": {"path": "rootfs"}, "mounts": [bind(root)],
        "linux": {"namespaces": PRIVATE, "readonlyPaths": ["/proc/bus", "/proc/sys"]},
    })  # fmt: skip
    assert "own root" in way_out(Bundle(f"{root.parent}/config.json", document))
    monkeypatch.chdir(root.parent)
    assert "own root" in way_out(Bundle("config.json", document))
    monkeypatch.chdir(machine.work)
    assert "own root" in way_out(Bundle("bundle/config.json", document))
    assert way_out(Bundle("config.json", document)) == ""


def test_a_way_is_named(machine: Machine) -> None:
    groups = machine.mount(V1, machine.folder("sys/fs/cgroup"))
    settings = machine.mount(KERNEL % "debugfs", machine.folder("debug"))
    mount = f"the mount of {groups} at /x"
    assert way(bind(groups)) == f"{mount}, which has the host's control groups"
    assert way(bind(settings)).endswith(", which has the host's settings of the kernel (debugfs)")
    assert way(namespaces=[{"type": "cgroup"}]) == "the host's processes (--pid=host)"
    assert way(capabilities=("SYS_ADMIN",)) == "CAP_SYS_ADMIN"
    assert way(root=str(groups)).startswith(f"the root {groups}, which has")
    (machine.own / "mountinfo").unlink()
    assert "cannot read" in way()


def test_a_second_proc_is_not_masked(machine: Machine) -> None:
    assert machine.lines
    proc = {"type": "proc", "source": "proc"}
    assert not leaves({**proc, "destination": "/proc"})
    assert leaves({**proc, "destination": "/x"})


@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_control_groups_of_the_host_can_be_mounted_as_the_containers(
    kind: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"destination": "/sys/fs/cgroup", "type": kind, "source": kind}
    writable, read_only = {**own, "options": ["rw"]}, {**own, "options": ["nosuid", "ro"]}
    hosts = [{"type": "pid"}]
    groups = machine.folder("unified")
    monkeypatch.setattr(host_view, "UNIFIED", str(groups))
    assert not leaves(writable, namespaces=hosts)  # version 1: a runtime mounts one group
    (groups / "cgroup.controllers").touch()
    assert leaves(writable, namespaces=hosts)
    assert leaves(own, namespaces=hosts)
    assert leaves(
        writable, namespaces=[*hosts, {"type": "cgroup", "path": "/proc/self/ns/cgroup"}]
    )
    assert leaves(read_only, namespaces=hosts)
    assert not leaves(writable)


@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_control_groups_of_a_namespace_that_is_joined_count(kind: str, machine: Machine) -> None:
    """`podman run --cgroupns=ns:PATH`: a user of the host can make the namespace."""
    assert machine.lines
    joined = [{"type": "pid"}, {"type": "cgroup", "path": "/proc/9/ns/cgroup"}]
    own = {"destination": "/sys/fs/cgroup", "type": kind, "source": kind, "options": ["ro"]}
    assert way(own, namespaces=joined) == "control groups of others (/proc/9/ns/cgroup)"
    assert way(own, namespaces=[*PRIVATE, *joined]) == way(own, namespaces=joined)
    assert not leaves(namespaces=joined)


@contextmanager
def first_process(*flags: str) -> Iterator[str]:
    """Yield the folder in /proc of the first process of a PID namespace."""
    words = ["unshare", "--pid", "--fork", "--kill-child", *flags, "sleep", "60"]
    with subprocess.Popen(words) as outer:
        try:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            while not children.read_text().strip():
                assert outer.poll() is None
                time.sleep(0.01)
            yield f"/proc/{children.read_text().strip()}"
        finally:
            outer.kill()


@as_root
def test_a_pid_namespace_with_users_of_its_own_is_not_another_containers(
    machine: Machine,
) -> None:
    """`podman run --pid=ns:PATH`; a user can `unshare --user --pid`, and sees the host's files."""
    link = machine.work / "link"

    def joins(process: str, *others: dict[str, str]) -> str:
        joined = {"type": "pid", "path": f"{process}/ns/pid"}
        return way(namespaces=[{"type": "cgroup"}, joined, *others])

    with first_process() as process:
        link.symlink_to(process)
        assert joins(process) == ""
        assert joins(str(link)) == ""  # CRI-O has a mount of it
        foreign = {"type": "user", "path": "/proc/self/ns/user"}
        assert joins(process, foreign) == ""
        with first_process("--user") as users:
            second = machine.work / "second"
            second.symlink_to(users)
            assert joins(str(second)) == f"processes that may be the host's ({second}/ns/pid)"
            assert joins(users) == f"processes that may be the host's ({users}/ns/pid)"
            assert joins(users, {"type": "user", "path": f"{users}/ns/user"}) == ""
            assert joins(process, {"type": "user", "path": f"{users}/ns/user"})


SEES: dict[str, Any] = {
    "the host's": [{"type": "cgroup"}],
    "the host's by path": [{"type": "pid", "path": "/proc/self/ns/pid"}],
    "one that cannot be seen": [{"type": "pid", "path": "/proc/0/ns/pid"}],
}


@pytest.mark.parametrize("way", [*SEES, "/proc", "the root, read-only"])
def test_who_sees_processes_of_the_host_leaves(way: str, machine: Machine) -> None:
    """With whatever capabilities: /proc/PID/root of a process of the same user is the host's."""
    processes = machine.mount(PROCESSES, machine.folder("host/proc"))
    mounts = {"/proc": bind(processes, "ro"), "the root, read-only": bind("/", "ro", "rro")}
    given: Any = {"namespaces": SEES[way]} if way in SEES else {}
    seen = [mounts[way]] if way in mounts else []
    assert leaves(*seen, **given)
    assert leaves(*seen, **given, capabilities=())
    users: Any = {"namespaces": [*given.get("namespaces", PRIVATE), {"type": "user"}]}
    assert leaves(*seen, **users) == (way == "one that cannot be seen")
    joined = {"type": "user", "path": "/proc/self/ns/user"}
    assert leaves(*seen, namespaces=[*given.get("namespaces", PRIVATE), joined])


def test_what_cannot_be_read_counts(machine: Machine) -> None:
    (machine.own / "mountinfo").write_text("1 2 - cgroup\n")
    assert leaves()
    (machine.own / "mountinfo").unlink()
    assert leaves()


def test_special_files_are_seen_in_sources_the_root_and_mounts_below(machine: Machine) -> None:
    work, made = machine.work, []
    for name in ("a", "a/b/deep", "a/b/held", "root", "root/dev", "root/y"):
        (work / name).mkdir(parents=True, exist_ok=True)
        made.append(work / name / "pipe")
        os.mkfifo(made[-1])
    machine.mount(OTHER, work / "a/b/deep", "rw,nosuid")
    machine.mount(OTHER, work / "a/b/held", "rw,nodev")
    machine.mount(OTHER, work / "root/dev")
    machine.mount(OTHER, work / "root/y")
    (work / "link").symlink_to(work / "a")

    def seen(source: Path, root: Path | str = "rootfs") -> set[str]:
        mounts = [bind(source), {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}]
        document = {"root": {"path": str(root)}, "mounts": mounts}
        pairs = seen_nodes(Bundle("config.json", json.dumps(document)))
        return {str(Path(path).parent.relative_to(work)) for _, path in pairs}

    assert seen(work / "a") == seen(work / "link") == {"a", "a/b/deep"}
    assert seen(made[1]) == {"a/b/deep"}
    assert seen(work / "none", work / "root") == {"root", "root/y"}


@as_root
def test_only_folders_of_others_are_searched_for_nodes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rootless engine sees /run, and the home of its user."""
    work, others = machine.work, 65534
    for name in ("run/nvidia/driver/dev/caps", "run/user/1000/x"):
        (work / name).mkdir(parents=True)
        os.mkfifo(work / name / "pipe")
    for folder, _, _ in os.walk(work / "run"):
        os.chown(folder, others, others)
    os.chown(work / "run/user/1000", 0, 0)
    bundle = Bundle("config.json", json.dumps({"mounts": [bind(work / "run")]}))
    driver = [(str(work / "run"), str(work / "run/nvidia/driver/dev/caps/pipe"))]
    assert list(seen_nodes(bundle)) == driver
    for number in range(40):
        (work / "run/a/b" / str(number)).mkdir(parents=True)
        os.chown(work / "run/a/b" / str(number), others, others)
    os.chown(work / "run/a", others, others)
    os.chown(work / "run/a/b", others, others)
    monkeypatch.setattr(host_view, "FOLDERS", 20)
    assert list(seen_nodes(bundle)) == driver
