# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.cli.system."""

import os
from pathlib import Path

import pytest
from click.testing import Result

from tests.support.commands import invoke
from tests.support.host_tree import HostTree


def config(tree: HostTree) -> str:
    text = f'[nvct]\nproc-root = "{tree.base}/proc"\nsys-root = "{tree.base}/sys"\n'
    return str(tree.write("config.toml", text))


def run(tree: HostTree, *arguments: str, env: dict[str, str] | None = None) -> Result:
    argv = ["--config", config(tree), "system", *arguments]
    return invoke("nvidia-ctk", argv, env=env, catch_exceptions=False)


def bare(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path).module().gpu(0)
    for name in ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0"):
        (tmp_path / "dev" / name).unlink()
    return tree


def test_a_dry_run_prints_the_commands_and_changes_nothing(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    arguments = ("create-device-nodes", "--all", "--dry-run", "--load-kernel-modules")

    completed = run(tree, *arguments, "--root", str(tmp_path))

    assert completed.stdout.splitlines() == [
        f"chroot {tmp_path} /sbin/modprobe nvidia",
        f"chroot {tmp_path} /sbin/modprobe nvidia-uvm",
        f"chroot {tmp_path} /sbin/modprobe nvidia-modeset",
        f"mknod --mode=0666 {tmp_path}/dev/nvidia-modeset c 195 254",
        f"mknod --mode=0666 {tmp_path}/dev/nvidia-uvm c 508 0",
        f"mknod --mode=0666 {tmp_path}/dev/nvidia-uvm-tools c 508 1",
        f"mknod --mode=0666 {tmp_path}/dev/nvidia0 c 195 0",
        f"mknod --mode=0666 {tmp_path}/dev/nvidiactl c 195 255",
    ]
    assert not (tmp_path / "dev/nvidia0").exists()


@pytest.mark.parametrize("name", ["ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"])
def test_the_incumbents_variables_are_read(tmp_path: Path, name: str) -> None:
    tree = bare(tmp_path)
    env = {name: "/nowhere", "NVIDIA_DEV_ROOT": str(tmp_path), "DRY_RUN": "true"}

    completed = run(tree, "create-device-nodes", "--gpus", "--load-kernel-modules", env=env)

    assert completed.stdout.splitlines()[0] == "chroot /nowhere /sbin/modprobe nvidia"
    assert completed.stdout.splitlines()[-1] == f"mknod --mode=0666 {tmp_path}/dev/nvidia0 c 195 0"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_changes_are_reported_and_a_second_run_reports_nothing(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    tree.write("dev/nvidiactl", "no node")
    arguments = ("create-device-nodes", "--control-devices", "--root", str(tmp_path))

    first, second = run(tree, *arguments), run(tree, *arguments)

    assert first.stdout == ""
    assert first.stderr.splitlines() == [
        f"{tmp_path}/dev/nvidia-modeset made as device 195:254",
        f"{tmp_path}/dev/nvidia-uvm made as device 508:0",
        f"{tmp_path}/dev/nvidia-uvm-tools made as device 508:1",
        f"{tmp_path}/dev/nvidiactl was not a device node: now device 195:255",
    ]
    assert second.stderr == ""


def test_a_gpu_without_a_minor_is_warned_about(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    tree.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: NVIDIA H100\n")
    arguments = ("create-device-nodes", "--gpus", "--dry-run", "--root", str(tmp_path))
    links = ("create-dev-char-symlinks", "--create-all", "--dry-run")
    options = ("--dev-root", str(tmp_path), "--dev-char-path", f"{tmp_path}/char")
    warning = "warning: the GPU at 0000:18:00.0 has no device minor yet: its node is not made\n"

    assert run(tree, *arguments).stderr == warning
    assert run(tree, *links, *options).stderr == warning


def test_a_run_without_a_kind_is_reported(tmp_path: Path) -> None:
    completed = run(bare(tmp_path), "create-device-nodes", "--root", str(tmp_path))

    assert completed.exit_code == 0
    assert completed.stderr == ("nothing to do: add --control-devices, --gpus, --caps or --all\n")


def test_a_dry_run_of_links_shows_nodes_first(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    arguments = ("--create-all", "--create-device-nodes", "--dry-run", "--dev-root", str(tmp_path))

    completed = run(
        tree, "create-dev-char-symlinks", *arguments, "--dev-char-path", f"{tmp_path}/char"
    )

    lines = completed.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["mknod"] * 4 + ["ln"] * 5
    assert not (tmp_path / "char").exists()


def test_options_that_need_create_all_are_warned_about(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    arguments = ("--load-kernel-modules", "--create-device-nodes", "--dev-root", str(tmp_path))

    completed = run(
        tree, "create-dev-char-symlinks", *arguments, "--dev-char-path", f"{tmp_path}/char"
    )

    assert completed.stderr.splitlines() == [
        "warning: --load-kernel-modules is ignored without --create-all",
        "warning: --create-device-nodes is ignored without --create-all",
        f"{tmp_path}/dev has no device node of the driver",
    ]
