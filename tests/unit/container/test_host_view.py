# SPDX-License-Identifier: Apache-2.0
"""What of the host root in a container can reach, whatever config.json calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvct.container import host_view
from nvct.container.host_view import leaves_cgroup
from nvct.oci.bundle import Bundle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PRIVATE = [{"type": "pid"}, {"type": "cgroup"}]
V1 = "{n} 1 0:29 {root} {target} {options} shared:7 - cgroup cgroup rw,devices"
V2 = "{n} 1 0:30 {root} {target} {options} - cgroup2 cgroup2 rw,nsdelegate"
PROCESSES = "{n} 1 0:22 {root} {target} {options} - proc proc rw"
OTHER = "{n} 1 8:1 {root} {target} {options} - ext4 /dev/vda1 rw"
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

    def process(self, pid: int, capabilities: int, uid: int = 0, *lines: str) -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        status = f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapPrm:\t{capabilities:016x}\n"
        (folder / "status").write_text(status)
        (folder / "mountinfo").write_text("\n".join([*lines, ""]))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def leaves(
    *mounts: dict[str, Any],
    namespaces: list[dict[str, str]] | None = None,
    capabilities: tuple[str, ...] = DOCKERS,
    root: str = "rootfs",
) -> bool:
    document = {
        "root": {"path": root},
        "process": {"capabilities": {"bounding": [f"CAP_{name}" for name in capabilities]}},
        "mounts": list(mounts),
        "linux": {"namespaces": PRIVATE if namespaces is None else namespaces},
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
    groups = machine.mount(V2, machine.folder("sys/fs/cgroup"))
    assert not leaves(bind(groups, "ro"))
    assert leaves(bind(groups.parent, "ro"))
    assert not leaves(bind(groups.parent, "ro", "rro"))
    processes = machine.mount(PROCESSES, machine.folder("proc2"))
    assert leaves(bind(processes))
    assert not leaves(bind(processes, "ro"))
    other = machine.mount(V1, machine.folder("other/cgroup"), "ro,nosuid")
    assert not leaves(bind(other))
    assert not leaves(bind(other.parent))


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
    assert not leaves(read_only, namespaces=hosts)
    assert not leaves(writable)


SEES: dict[str, Any] = {
    "the host's": [{"type": "cgroup"}],
    "the host's by path": [{"type": "pid", "path": "/proc/self/ns/pid"}],
    "one that cannot be seen": [{"type": "pid", "path": "/proc/0/ns/pid"}],
}


@pytest.mark.parametrize("way", [*SEES, "/proc", "the root, read-only"])
def test_who_sees_processes_of_the_host_and_may_trace_them_leaves(
    way: str, machine: Machine
) -> None:
    processes = machine.mount(PROCESSES, machine.folder("host/proc"))
    mounts = {"/proc": bind(processes, "ro"), "the root, read-only": bind("/", "ro", "rro")}
    given: Any = {"namespaces": SEES[way]} if way in SEES else {}
    seen = [mounts[way]] if way in mounts else []
    traces = (*DOCKERS, "SYS_PTRACE")
    assert leaves(*seen, **given, capabilities=traces)
    assert not leaves(capabilities=traces)
    assert leaves(*seen, **given) == (way == "one that cannot be seen")
    users: Any = {"namespaces": [*given.get("namespaces", PRIVATE), {"type": "user"}]}
    assert leaves(*seen, **users, capabilities=traces) == (way == "one that cannot be seen")


@pytest.mark.parametrize(
    ("capabilities", "uid", "mount", "is_way"),
    [
        (0, 0, V1, True),
        (1 << 27 | 1, 0, V2, True),  # CAP_MKNOD, CAP_CHOWN
        (1 << 12, 0, V1, False),  # CAP_NET_ADMIN, which the container has not
        ((1 << 41) - 1, 0, V1, False),
        (0, 1000, V1, False),
        (0, 0, OTHER, False),
    ],
)
def test_a_weaker_process_of_the_hosts_root_is_a_way(
    capabilities: int, uid: int, mount: str, *, is_way: bool, machine: Machine
) -> None:
    """Monitoring with the host's processes goes on: few hosts have such a process."""
    line = mount.format(n=1, root="/", target="/sys/fs/cgroup", options="rw")
    machine.process(77, capabilities, uid, line)
    assert leaves(namespaces=[{"type": "cgroup"}]) == is_way
    assert not leaves()


@pytest.mark.parametrize(("options", "root"), [("ro", "/"), ("rw", "/docker/1")])
def test_a_process_that_cannot_leave_either_is_none(
    options: str, root: str, machine: Machine
) -> None:
    line = V1.format(n=1, root=root, target="/sys/fs/cgroup", options=options)
    machine.process(77, 0, 0, line)
    assert not leaves(namespaces=[])


def test_what_cannot_be_read_counts(machine: Machine) -> None:
    (machine.own / "mountinfo").write_text("1 2 - cgroup\n")
    assert leaves()
    (machine.own / "mountinfo").unlink()
    assert leaves()


def test_capabilities_are_in_the_kernels_order() -> None:
    header = Path("/usr/include/linux/capability.h")
    if not header.exists():
        pytest.skip("needs the kernel's headers")
    words = [line.split() for line in header.read_text().splitlines()]
    numbers = {
        w[1]: int(w[2]) for w in words
        if len(w) == 3 and w[0] == "#define" and w[1][:4] == "CAP_" and w[2].isdigit()
    }  # fmt: skip
    known = {f"CAP_{name}": number for number, name in enumerate(host_view.CAPABILITIES)}
    assert {name: known[name] for name in numbers} == numbers
