# SPDX-License-Identifier: Apache-2.0
"""Commands nvct refresh, nvct launchers install and nvidia-ctk hook."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct import paths
from nvct.container.plan import model
from nvct.container.plan.store import Store
from tests.support.processes import captured
from tests.support.shim_lab import Lab


def nvct(
    lab: Lab, *args: str | Path, program: str = "nvct", data: str = ""
) -> subprocess.CompletedProcess[str]:
    code = f"from nvct.cli.main import {program}; {program}()"
    return captured(
        [sys.executable, "-c", code, *map(str, args)], env=lab.env, input=data, timeout=120
    )


def is_current(lab: Lab, name: str) -> bool:
    store = Store(str(lab.run_dir))
    plan = store.read_json(name)
    store.close()
    return model.is_current(plan)


@pytest.mark.parametrize(
    ("args", "file_names"),
    [
        ([], [paths.OWN_PLAN, paths.REGISTRY_PLAN]),
        (["own"], [paths.OWN_PLAN]),
        (["registry"], [paths.REGISTRY_PLAN]),
    ],
)
def test_refresh_compiles_the_plans_of_the_next_create(
    args: Sequence[str], file_names: list[str], lab: Lab
) -> None:
    lab.driver(gpus=2)
    lab.spec()

    completed = nvct(lab, "refresh", *args)

    assert (completed.returncode, completed.stderr) == (0, "")
    assert [
        name for name in sorted(os.listdir(lab.run_dir)) if name.endswith(".plan")
    ] == file_names
    assert all(is_current(lab, name) for name in file_names)
    lines = {"own.plan": "own: 7 device names", "registry.plan": "registry: 2 devices in 1 spec"}
    assert sorted(completed.stdout.splitlines()) == sorted(lines[name] for name in file_names)


def test_refresh_recompiles_other_requested_features(lab: Lab) -> None:
    host = lab.driver(gpus=1)
    majors = (
        (lab.home / "proc/devices")
        .read_text()
        .replace("Block", "241 gdrdrv\n242 nvidia-nvswitch\n\nBlock")
    )
    host.write("proc/devices", majors)
    for name in ("gdrdrv", "nvidia-nvswitch0"):
        host.write(f"dev/{name}", mode=0o666)
    lab.asks("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDRCOPY=enabled", "NVIDIA_NVSWITCH=enabled")
    assert lab.create().status == 0
    for name in ("mode-gdrcopy.plan", "mode-nvswitch.plan"):
        assert is_current(lab, name), name
    (lab.home / "dev/gdrdrv").unlink()
    host.write("dev/nvidia-nvswitch1", mode=0o666)

    completed = nvct(lab, "refresh")

    assert completed.returncode == 0
    assert "mode-nvswitch: 1 device names" in completed.stdout
    assert completed.stderr.startswith("warning: mode-gdrcopy: ")
    assert is_current(lab, "mode-nvswitch.plan")
    assert not (lab.run_dir / "mode-gdrcopy.plan").exists()
    assert "nvidia-nvswitch1" in (lab.run_dir / "mode-nvswitch.plan").read_text()


def test_a_create_after_refresh_starts_no_cold_side_for_its_plan(lab: Lab) -> None:
    lab.driver(gpus=1)
    nvct(lab, "refresh")
    lab.asks()
    lab.create()  # compiles config.toml
    lab.cold = "/no/python"
    lab.asks("NVIDIA_VISIBLE_DEVICES=0")

    messages = lab.create()

    assert (messages.status, messages.stderr) == (0, "")


def test_refresh_warns_about_files_and_conflicts(lab: Lab) -> None:
    a, b = lab.spec("a.json"), lab.spec("b.json")
    bad = lab.home / "cdi/bad.json"
    bad.write_text("{")

    completed = nvct(lab, "refresh", "registry")

    assert completed.returncode == 0
    lines = completed.stderr.splitlines()
    assert lines[0].startswith(f"warning: {bad}")
    assert lines[1:] == [f"warning: nvidia.com/gpu={n} is defined by {a} and {b}" for n in (0, 1)]


def test_nvidia_ctk_hook_does_the_work(lab: Lab) -> None:
    lab.asks()
    state = f'{{"ociVersion": "1.0.2", "id": "x", "bundle": "{lab.bundle}"}}'

    completed = nvct(
        lab, "hook", "create-symlinks", "--link", "a::/b", program="nvidia_ctk", data=state
    )

    assert (completed.returncode, completed.stderr) == (0, "")
    assert os.readlink(lab.bundle / "rootfs/b") == "a"


def test_launchers_are_installed_and_run(lab: Lab) -> None:
    folder = lab.home / "programs"
    folder.mkdir()

    completed = nvct(
        lab, "launchers", "install", "--bin-dir", folder, "--form", "sh",
        "--archive", lab.home / "hot.bin",
    )  # fmt: skip

    assert completed.returncode == 0, completed.stderr
    assert "nvidia-container-runtime" in os.listdir(folder)
    assert "nvidia-cdi-hook" not in os.listdir(folder)
    assert "not installed: nvidia-cdi-hook, " in completed.stderr
    assert "install gcc and libc6-dev" in completed.stderr
    output = captured([folder / "nvidia-container-runtime", "state", "x"], env=lab.env, timeout=60)
    assert (output.stdout, output.stderr) == ("runc state x\n", "")
