# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.host.dev_char."""

import os
import stat
from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.host import dev_char
from nvct.host.dev_char import LinkPlan
from nvct.host.model import Findings
from tests.support.host_tree import HostTree
from tests.support.recording_kernel import RecordingKernel

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def planned(tree: HostTree, *, create_all: bool = True) -> LinkPlan:
    folder = f"{tree.base}/dev/char"
    return dev_char.plan_links(tree.roots, folder, Findings(), create_all=create_all)


def actions(plan: LinkPlan) -> dict[str, tuple[str, str]]:
    return {os.path.basename(s.path): (s.action, os.path.basename(s.target)) for s in plan.steps}


def one_gpu(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path).module().gpu(0)


def real_node(tree: HostTree, name: str, major: int, minor: int) -> None:
    path = tree.base / f"dev/{name}"
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))


def test_all_possible_nodes_are_linked(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path).instance(0, 1, 0, (12, 13))
    minors = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"
    tree.write(
        "proc/driver/nvidia-caps/mig-minors", minors + "gpu0/gi2/access 21\ngpu1/gi0/access 147\n"
    )

    assert actions(planned(tree)) == {
        "195:0": ("make", "nvidia0"), "195:254": ("make", "nvidia-modeset"),
        "195:255": ("make", "nvidiactl"), "508:0": ("make", "nvidia-uvm"),
        "508:1": ("make", "nvidia-uvm-tools"), "236:1": ("make", "nvidia-cap1"),
        "236:2": ("make", "nvidia-cap2"), "236:12": ("make", "nvidia-cap12"),
        "236:13": ("make", "nvidia-cap13"), "236:21": ("make", "nvidia-cap21"),
    }  # fmt: skip


def test_before_the_first_use_gpus_are_counted_on_the_pci_bus(tmp_path: Path) -> None:
    tree = HostTree(tmp_path).module()
    for bus, vendor, kind in (
        ("18", "0x10de", "0x030200"), ("2a", "0x10de", "0x030000"),
        ("2b", "0x10de", "0x040300"), ("3a", "0x1a03", "0x030000"),
    ):  # fmt: skip
        tree.write(f"sys/bus/pci/devices/0000:{bus}:00.0/vendor", f"{vendor}\n")
        tree.write(f"sys/bus/pci/devices/0000:{bus}:00.0/class", f"{kind}\n")

    step_actions = actions(planned(tree))

    assert {name for name in step_actions if name.startswith("195:")} == {
        "195:0", "195:1", "195:254", "195:255",
    }  # fmt: skip


def test_links_are_made_and_a_second_run_keeps_them(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path)
    kernel = RecordingKernel()

    dev_char.update_links(planned(tree), f"{tmp_path}/dev/char", kernel)

    assert os.readlink(tmp_path / "dev/char/195:0") == f"{tmp_path}/dev/nvidia0"
    assert len(os.listdir(tmp_path / "dev/char")) == 5
    assert {step.action for step in planned(tree).steps} == {"keep"}
    before = len(kernel.calls)
    dev_char.update_links(planned(tree), f"{tmp_path}/dev/char", kernel)
    assert len(kernel.calls) == before


def test_udevs_relative_link_is_kept(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path).link("dev/char/195:0", "../nvidia0")

    assert actions(planned(tree))["195:0"] == ("keep", "nvidia0")


def test_a_link_that_leads_elsewhere_is_corrected(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path).link("dev/char/195:0", "../nvidia7")
    plan = planned(tree)

    dev_char.update_links(plan, f"{tmp_path}/dev/char", RecordingKernel())

    assert [dev_char.describe(s) for s in plan.steps if s.action == "replace"] == [
        f"{tmp_path}/dev/char/195:0 led to ../nvidia7: now {tmp_path}/dev/nvidia0"
    ]
    assert os.readlink(tmp_path / "dev/char/195:0") == f"{tmp_path}/dev/nvidia0"


def test_a_link_of_a_number_that_the_node_no_longer_has_is_removed(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path).link("dev/char/511:0", "../nvidia-uvm")
    tree.link("dev/char/1:3", "../null").link("dev/char/511:9", "../nvidia-fs0")
    plan = planned(tree)

    dev_char.update_links(plan, f"{tmp_path}/dev/char", RecordingKernel())

    assert [dev_char.describe(s) for s in plan.steps if s.action == "remove"] == [
        f"{tmp_path}/dev/char/511:0 removed: ../nvidia-uvm has another number now"
    ]
    names = os.listdir(tmp_path / "dev/char")
    assert "511:0" not in names
    assert {"1:3", "511:9"} <= set(names)


def test_a_link_that_cannot_be_removed_is_named_as_such(tmp_path: Path) -> None:
    class ReadOnly(RecordingKernel):
        def unlink(self, path: str, **_: object) -> None:
            raise PermissionError(1, "Operation not permitted", path)

    tree = one_gpu(tmp_path).link("dev/char/511:0", "../nvidia-uvm")

    with pytest.raises(HostError) as raised:
        dev_char.update_links(planned(tree), f"{tmp_path}/dev/char", ReadOnly())

    assert raised.value.message == (
        f"cannot remove {tmp_path}/dev/char/511:0: Operation not permitted"
    )
    assert raised.value.hint == "run as root"


def test_a_file_that_is_not_a_link_stays_with_a_warning(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path)
    tree.write("dev/char/195:0", "a file")
    plan = planned(tree)

    dev_char.update_links(plan, f"{tmp_path}/dev/char", RecordingKernel())

    assert (tmp_path / "dev/char/195:0").read_text() == "a file"
    blocked = next(step for step in plan.steps if step.action == "blocked")
    assert dev_char.describe(blocked) == (
        f"warning: {tmp_path}/dev/char/195:0 is not a link: left as it is"
    )


def test_without_the_modules_the_missing_majors_are_named(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path)
    tree.write("proc/devices", "Character devices:\n  1 mem\n")

    plan = planned(tree)

    assert plan.steps == ()
    assert plan.missing == ("nvidia", "nvidia-uvm")


@needs_root
def test_existing_nodes_are_linked_by_their_own_numbers(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    for name, minor in (
        ("nvidia0", 0), ("nvidia-fs0", 20), ("nvidia-nvswitch0", 21), ("nvidia-nvlink", 22),
        ("nvidia-caps/nvidia-cap1", 1), ("nvidia-caps-imex-channels/channel0", 30),
        ("null", 99),
    ):  # fmt: skip
        real_node(tree, name, 300, minor)
    tree.write("dev/nvidia5", "no node")

    assert actions(planned(tree, create_all=False)) == {
        "300:0": ("make", "nvidia0"),
        "300:1": ("make", "nvidia-cap1"),
        "300:30": ("make", "channel0"),
    }


@needs_root
def test_a_node_with_wrong_numbers_gets_no_second_link(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path)
    real_node(tree, "nvidia0", 1, 3)

    step_actions = actions(planned(tree))

    assert step_actions["195:0"] == ("make", "nvidia0")
    assert "1:3" not in step_actions


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path)
    tree.write("dev/char", "a file")

    with pytest.raises(HostError, match=r"cannot read .*/dev/char: Not a directory"):
        planned(tree)


def test_steps_can_be_shown_as_commands(tmp_path: Path) -> None:
    tree = one_gpu(tmp_path).link("dev/char/195:0", "../nvidia7")
    tree.link("dev/char/511:0", "../nvidia-uvm").link("dev/char/195:255", "../nvidiactl")

    lines = [line for step in planned(tree).steps for line in dev_char.shell_commands(step)]

    char, dev = f"{tmp_path}/dev/char", f"{tmp_path}/dev"
    assert lines == [
        f"ln -s -f {dev}/nvidia0 {char}/195:0",
        f"ln -s {dev}/nvidia-modeset {char}/195:254",
        f"ln -s {dev}/nvidia-uvm {char}/508:0",
        f"ln -s {dev}/nvidia-uvm-tools {char}/508:1",
        f"rm {char}/511:0",
    ]
