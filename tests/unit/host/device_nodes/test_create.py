# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.host.device_nodes."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import HostError
from nvct.host import device_nodes
from nvct.host.device_nodes import (
    KINDS,
    ExpectedNode,
    Kind,
    NodePlan,
    NodeStep,
    Permissions,
    parse_permissions,
)
from nvct.host.model import Findings
from nvct.linux.kernel import Kernel
from tests.support.host_tree import HostTree
from tests.support.recording_kernel import RecordingKernel

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def host(tmp_path: Path) -> HostTree:
    """Two GPUs and a MIG device without any device nodes."""
    tree = HostTree(tmp_path).module().gpu(0).gpu(1, minor=3).instance(0, 1, 0, (12, 13))
    for path in (tmp_path / "dev").rglob("nvidia*"):
        if path.is_file():
            path.unlink()
    (tmp_path / "dev/nvidia-caps").rmdir()
    return tree


def planned(tree: HostTree, *kinds: Kind) -> NodePlan:
    return device_nodes.plan_nodes(tree.roots, kinds or KINDS, Findings())


def numbers(plan: NodePlan, tree: HostTree) -> dict[str, tuple[int, int]]:
    dev = f"{tree.base}/dev/"
    return {s.node.path.removeprefix(dev): (s.node.major, s.node.minor) for s in plan.steps}


class FakeKernel(Kernel):
    """Writes down what was asked and does nothing: nodes need root. New names become "new"."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def note(self, name: str, path: str, *values: object) -> None:
        folder, base = os.path.split(path)
        self.calls.append((name, f"{folder}/new" if base.startswith(".nvct-") else path, *values))

    def mknod(self, path: str, mode: int, device: int = 0, **_: object) -> None:
        self.note("mknod", path, mode, device)

    def lchown(self, path: str, uid: int, gid: int, **_: object) -> None:
        self.note("lchown", path, uid, gid)

    def chmod(self, path: str, mode: int, **_: object) -> None:
        self.note("chmod", path, mode)

    def rename(self, source: str, target: str, **_: object) -> None:
        self.note("rename", source, target)

    def unlink(self, path: str, **_: object) -> None:
        self.note("unlink", path)


def test_every_node_has_the_numbers_of_the_kernels_tables(tmp_path: Path) -> None:
    tree = host(tmp_path)

    plan = planned(tree)

    assert numbers(plan, tree) == {
        "nvidiactl": (195, 255), "nvidia-modeset": (195, 254),
        "nvidia-uvm": (508, 0), "nvidia-uvm-tools": (508, 1),
        "nvidia0": (195, 0), "nvidia3": (195, 3),
        "nvidia-caps/nvidia-cap12": (236, 12), "nvidia-caps/nvidia-cap13": (236, 13),
    }  # fmt: skip
    assert {step.action for step in plan.steps} == {"make"}
    assert plan.missing == ()


def test_the_majors_name_of_drivers_before_550_is_known(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write("proc/devices", "Character devices:\n 242 nvidia-frontend\n 240 nvidia-uvm\n")

    plan = planned(tree, "control", "gpu")

    assert numbers(plan, tree)["nvidia0"] == (242, 0)
    assert numbers(plan, tree)["nvidiactl"] == (242, 255)


def test_without_a_module_its_nodes_are_left_out_with_a_warning(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write("proc/devices", "Character devices:\n 195 nvidia\n")

    plan = planned(tree)

    assert set(numbers(plan, tree)) == {"nvidiactl", "nvidia-modeset", "nvidia0", "nvidia3"}
    assert plan.missing == ("nvidia-uvm", "nvidia-caps")
    error = device_nodes.missing_majors_error(plan.missing, tree.roots)
    assert error.message == (
        f"{tmp_path}/proc/devices has no nvidia-uvm and no nvidia-caps: their nodes are not made"
    )
    assert error.hint == ("load the module: modprobe nvidia-uvm nvidia, or --load-kernel-modules")


def test_a_gpu_without_a_minor_gets_no_node_and_a_warning(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write("proc/driver/nvidia/gpus/0000:2a:00.0/information", "Model: NVIDIA H100\n")
    findings = Findings()

    nodes, _ = device_nodes.expected_nodes(tree.roots, ["gpu"], findings)

    assert [node.path for node in nodes] == [f"{tmp_path}/dev/nvidia0"]
    assert findings.warnings == [
        "the GPU at 0000:2a:00.0 has no device minor yet: its node is not made"
    ]


def test_permissions_are_the_drivers_or_the_capabilitys_own(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write(
        "proc/driver/nvidia/params",
        "ModifyDeviceFiles: 1\nDeviceFileUID: 7\nDeviceFileGID: 44\nDeviceFileMode: 432\n",
    )

    by_name = {s.node.path.rpartition("/")[2]: s.node.permissions for s in planned(tree).steps}

    assert by_name["nvidia0"] == by_name["nvidia-uvm"] == Permissions(mode=0o660, uid=7, gid=44)
    assert by_name["nvidia-cap12"] == Permissions(mode=0o444)


def test_every_capability_file_is_found_wherever_it_is(tmp_path: Path) -> None:
    tree = host(tmp_path)
    for name, minor in (("mig/config", 1), ("fabric-imex-mgmt", 900)):
        tree.write(
            f"proc/driver/nvidia/capabilities/{name}",
            f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 0\n",
        )
    tree.write("proc/driver/nvidia/capabilities/mig/README", "no minor here\n")

    assert device_nodes.capabilities(tree.roots) == [
        (1, Permissions(mode=0o400, modify=False)),
        (12, Permissions(mode=0o444)),
        (13, Permissions(mode=0o444)),
        (900, Permissions(mode=0o400, modify=False)),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Permissions()),
        ("DeviceFileMode: 384\n", Permissions(mode=0o600)),
        ("DeviceFileMode: 4095\n", Permissions(mode=0o777)),
        ("ModifyDeviceFiles: 0\n", Permissions(modify=False)),
        ("DeviceFileMode: 438x\nDeviceFileUID: -1\n", Permissions()),
    ],
)
def test_a_missing_parameter_has_its_default(text: str, expected: Permissions) -> None:
    assert parse_permissions(text) == expected


def test_a_file_in_place_of_a_node_is_replaced_and_a_directory_an_error(tmp_path: Path) -> None:
    tree = host(tmp_path)
    file = tree.write("dev/nvidia0")
    tree.link("dev/nvidia3", "nvidia0")

    plan = planned(tree, "gpu")

    assert [(step.action, step.was) for step in plan.steps] == [
        ("replace", "not a device node"), ("replace", "a link"),
    ]  # fmt: skip
    file.unlink()
    file.mkdir()
    with pytest.raises(HostError, match="dev/nvidia0 is a directory, not a device node"):
        planned(tree, "gpu")


def test_a_node_gets_owner_and_mode_before_its_name(tmp_path: Path) -> None:
    tree = host(tmp_path)
    kernel = FakeKernel()
    gpu = next(s for s in planned(tree, "gpu").steps if s.node.minor == 3)

    device_nodes.make_nodes(NodePlan(steps=(gpu,)), kernel)

    dev = f"{tmp_path}/dev"
    assert kernel.calls == [
        ("mknod", f"{dev}/new", stat.S_IFCHR, os.makedev(195, 3)),
        ("lchown", f"{dev}/new", 0, 0),
        ("chmod", f"{dev}/new", 0o666),
        ("rename", f"{dev}/new", f"{dev}/nvidia3"),
    ]


def test_a_node_that_cannot_be_made_or_given_away_is_named_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    class NoOwner(FakeKernel):
        def lchown(self, path: str, uid: int, gid: int, **_: object) -> None:
            raise OSError(22, f"Invalid argument {uid}:{gid}", path)

    class NoNode(FakeKernel):
        def mknod(self, path: str, mode: int, device: int = 0, **_: object) -> None:
            assert (mode, device) == (stat.S_IFCHR, os.makedev(195, 0))
            raise PermissionError(1, "Operation not permitted", path)

    kernel, plan = NoOwner(), planned(host(tmp_path), "gpu")

    with pytest.raises(HostError, match=r"cannot make .*/dev/nvidia0: Invalid argument 0:0"):
        device_nodes.make_nodes(plan, kernel)
    with pytest.raises(HostError) as raised:
        device_nodes.make_nodes(plan, NoNode())

    assert [call[0] for call in kernel.calls] == ["mknod", "unlink"]
    assert raised.value.message == f"cannot make {tmp_path}/dev/nvidia0: Operation not permitted"
    assert raised.value.hint == "run as root"


@needs_root
def test_nodes_are_made_and_a_second_run_keeps_them(tmp_path: Path) -> None:
    tree = host(tmp_path)
    kernel = RecordingKernel()

    device_nodes.make_nodes(planned(tree), kernel)

    status = (tmp_path / "dev/nvidia-caps/nvidia-cap13").lstat()
    assert stat.S_ISCHR(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o444
    assert status.st_rdev == os.makedev(236, 13)
    assert stat.S_IMODE((tmp_path / "dev/nvidia-caps").stat().st_mode) == 0o755
    assert not list(tmp_path.rglob(".nvct-*"))
    assert {step.action for step in planned(tree).steps} == {"keep"}
    before = len(kernel.calls)
    device_nodes.make_nodes(planned(tree), kernel)
    assert len(kernel.calls) == before


@needs_root
def test_a_missing_dev_is_made_whichever_node_comes_first(tmp_path: Path) -> None:
    tree = host(tmp_path)
    (tmp_path / "dev").rename(tmp_path / "gone")

    device_nodes.make_nodes(planned(tree, "cap"), RecordingKernel())

    assert stat.S_ISCHR((tmp_path / "dev/nvidia-caps/nvidia-cap13").lstat().st_mode)


def test_a_missing_dev_root_is_an_error(tmp_path: Path) -> None:
    tree = host(tmp_path)
    steps = planned(tree, "gpu")
    tmp_path.rename(tmp_path.with_name("gone"))

    with pytest.raises(HostError, match=r"cannot make .*: No such file or directory") as raised:
        device_nodes.make_nodes(steps, RecordingKernel())

    assert raised.value.hint == "does the folder of --dev-root exist?"


@needs_root
def test_wrong_numbers_and_wrong_permissions_are_corrected(tmp_path: Path) -> None:
    tree = host(tmp_path)
    os.mknod(tmp_path / "dev/nvidia0", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(tmp_path / "dev/nvidia3", stat.S_IFCHR | 0o600, os.makedev(195, 3))
    plan = planned(tree, "gpu")
    sentences = [device_nodes.describe(step) for step in plan.steps]

    device_nodes.make_nodes(plan, Kernel())

    assert sentences == [
        f"{tmp_path}/dev/nvidia0 was device 1:3: now device 195:0",
        f"{tmp_path}/dev/nvidia3 had mode 0600 of 0:0: now 0666 of 0:0",
    ]
    statuses = [(tmp_path / f"dev/nvidia{n}").lstat() for n in (0, 3)]
    assert [stat.S_IMODE(status.st_mode) for status in statuses] == [0o666, 0o666]
    assert statuses[0].st_rdev == os.makedev(195, 0)


@needs_root
def test_permissions_stay_where_the_driver_is_not_to_modify_them(tmp_path: Path) -> None:
    tree = host(tmp_path)
    tree.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    os.mknod(tmp_path / "dev/nvidia0", stat.S_IFCHR | 0o600, os.makedev(195, 0))

    assert [step.action for step in planned(tree, "gpu").steps] == ["keep", "make"]


NODE = ExpectedNode(
    path="/dev/a b", major=195, minor=0, permissions=Permissions(mode=0o660, gid=44)
)


@pytest.mark.parametrize(
    ("action", "lines"),
    [
        ("make", ["mknod --mode=0660 '/dev/a b' c 195 0", "chown 0:44 '/dev/a b'"]),
        (
            "replace",
            ["rm '/dev/a b'", "mknod --mode=0660 '/dev/a b' c 195 0", "chown 0:44 '/dev/a b'"],
        ),
        ("permissions", ["chmod 0660 '/dev/a b'", "chown 0:44 '/dev/a b'"]),
        ("keep", []),
    ],
)
def test_a_step_can_be_shown_as_commands(action: Any, lines: list[str]) -> None:
    assert device_nodes.shell_commands(NodeStep(node=NODE, action=action)) == lines


# Unit tests for nvct.host.device_nodes.


NOTHING_LOADED = "/nonexistent"


class FakeRun:
    """Answers by the module's name; "" is success."""

    def __init__(self, **answers: str) -> None:
        self.answers = {name.replace("_", "-"): text for name, text in answers.items()}
        self.calls: list[str] = []

    def __call__(self, argv: Sequence[str]) -> tuple[int, str]:
        self.calls.append(" ".join(argv))
        text = self.answers.get(argv[-1], "")
        return (1 if text else 0), text


def test_all_three_modules_are_loaded() -> None:
    run = FakeRun()

    assert device_nodes.load("/", run, NOTHING_LOADED) == []
    assert run.calls == [
        "/sbin/modprobe nvidia", "/sbin/modprobe nvidia-uvm", "/sbin/modprobe nvidia-modeset",
    ]  # fmt: skip


def test_a_driver_root_uses_its_own_modprobe() -> None:
    run = FakeRun()

    device_nodes.load("/run/nvidia/driver", run, NOTHING_LOADED)

    assert run.calls[0] == "chroot /run/nvidia/driver /sbin/modprobe nvidia"


def test_a_required_module_that_cannot_be_loaded_is_an_error() -> None:
    run = FakeRun(nvidia_uvm="modprobe: FATAL: Module nvidia-uvm not found")

    with pytest.raises(HostError) as raised:
        device_nodes.load("/", run, NOTHING_LOADED)

    assert raised.value.message == (
        "cannot load module nvidia-uvm (/sbin/modprobe nvidia-uvm): "
        "modprobe: FATAL: Module nvidia-uvm not found"
    )


def test_a_driver_for_computing_alone_may_lack_modeset() -> None:
    assert device_nodes.load("/", FakeRun(nvidia_modeset="not found"), NOTHING_LOADED) == [
        "cannot load module nvidia-modeset (/sbin/modprobe nvidia-modeset): not found"
    ]


def test_a_missing_modprobe_is_reported_as_such() -> None:
    def run(argv: Sequence[str]) -> tuple[int, str]:
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    with pytest.raises(HostError, match=r"cannot load module nvidia .*No such file or directory"):
        device_nodes.load("/", run, NOTHING_LOADED)


def test_running_returns_the_status_and_the_last_line() -> None:
    assert device_nodes.run(["/bin/sh", "-c", "echo one; echo two >&2; exit 3"]) == (3, "two")
    assert device_nodes.run(["/bin/true"]) == (0, "")


def test_a_loaded_module_is_not_loaded_again(tmp_path: Path) -> None:
    for name in ("nvidia", "nvidia_uvm"):
        (tmp_path / "module" / name).mkdir(parents=True)
    run = FakeRun()

    assert device_nodes.load("/", run, str(tmp_path)) == []

    assert run.calls == ["/sbin/modprobe nvidia-modeset"]
