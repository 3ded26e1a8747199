# SPDX-License-Identifier: Apache-2.0
"""What of the host root in a container can reach, whatever config.json calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nvct.container import host_view
from nvct.container.host_view import leaves_cgroup, seen_nodes
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
    """A host with folders, mounts and processes of its own.

    Attributes:
        work: where the sources of mounts are.
    """

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
        """Add a line of mountinfo."""
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


def leaves(
    *mounts: dict[str, Any],
    namespaces: list[dict[str, str]] | None = None,
    capabilities: tuple[str, ...] = DOCKERS,
    root: str = "rootfs",
    held: tuple[str, ...] = ("/proc/bus", "/proc/sys"),
) -> bool:
    document = {
        "root": {"path": root},
        "process": {"capabilities": {"bounding": [f"CAP_{name}" for name in capabilities]}},
        "mounts": list(mounts),
        "linux": {
            "namespaces": PRIVATE if namespaces is None else namespaces,
            "readonlyPaths": held,
        },
    }
    return leaves_cgroup(Bundle("config.json", json.dumps(document)))


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
    for source in (links, machine.folder("sys/fs/cgroup2"), groups / "missing", "sysfs"):
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
    own = [{"destination": f"/{name}", "type": name, "source": name} for name in ("proc", "sys")]
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
        return leaves_cgroup(Bundle("config.json", json.dumps(document)))

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


@pytest.mark.parametrize("held", [(), ("/proc/sys/kernel", "/proc/bus")])
def test_settings_that_no_runtime_makes_read_only_are_a_way_out(
    held: tuple[str, ...], machine: Machine
) -> None:
    assert machine.lines
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    assert not leaves(proc)
    assert leaves(proc, held=held)
    assert not leaves({**proc, "options": ["nosuid", "ro"]}, held=held)


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
    machine.mount(V2, groups)
    assert leaves(writable, namespaces=hosts)
    assert leaves(own, namespaces=hosts)
    assert leaves(
        writable, namespaces=[*hosts, {"type": "cgroup", "path": "/proc/self/ns/cgroup"}]
    )
    assert leaves(read_only, namespaces=hosts)
    assert not leaves(writable)


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
        mounts = [bind(source), {**bind("tmpfs"), "destination": "/dev"}]
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
