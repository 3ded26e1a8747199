# SPDX-License-Identifier: Apache-2.0
"""Commands nvct refresh, nvct launchers install and nvidia-ctk hook."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nvct import paths
from nvct.container.plan import model
from nvct.container.plan.store import Store
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path


@pytest.fixture
def lab() -> Generator[Lab]:
    made = Lab()
    yield made
    made.remove()


def nvct(
    lab: Lab, *args: str | Path, program: str = "nvct", data: str = ""
) -> subprocess.CompletedProcess[str]:
    code = f"from nvct.cli.main import {program}; {program}()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env=lab.env, input=data, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def is_current(lab: Lab, name: str) -> bool:
    store = Store(str(lab.run_dir))
    plan = store.read_json(name)
    store.close()
    return model.is_current(plan)


@pytest.mark.parametrize(
    ("args", "made"),
    [
        ([], [paths.OWN_PLAN, paths.REGISTRY_PLAN]),
        (["all"], [paths.OWN_PLAN, paths.REGISTRY_PLAN]),
        (["own"], [paths.OWN_PLAN]),
        (["registry"], [paths.REGISTRY_PLAN]),
    ],
    ids=["", "all", "own", "registry"],
)
def test_refresh_makes_what_the_next_create_uses(
    args: Sequence[str], made: list[str], lab: Lab
) -> None:
    lab.driver(gpus=2)
    lab.spec()

    done = nvct(lab, "refresh", *args)

    assert (done.returncode, done.stderr) == (0, "")
    assert [name for name in sorted(os.listdir(lab.run_dir)) if name.endswith(".plan")] == made
    assert all(is_current(lab, name) for name in made)
    lines = {"own.plan": "own: 7 device names", "registry.plan": "registry: 2 devices in 1 spec"}
    assert sorted(done.stdout.splitlines()) == sorted(lines[name] for name in made)


def test_refresh_makes_again_what_containers_have_asked_for_besides_gpus(lab: Lab) -> None:
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

    done = nvct(lab, "refresh")

    assert done.returncode == 0
    assert "mode-nvswitch: 1 device names" in done.stdout
    assert done.stderr.startswith("warning: mode-gdrcopy: ")
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

    said = lab.create()

    assert (said.status, said.stderr) == (0, "")


def test_refresh_warns_about_files_and_conflicts(lab: Lab) -> None:
    a, b = lab.spec("a.json"), lab.spec("b.json")
    bad = lab.home / "cdi/bad.json"
    bad.write_text("{")

    done = nvct(lab, "refresh", "registry")

    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"warning: {bad}")
    assert lines[1:] == [f"warning: nvidia.com/gpu={n} is defined by {a} and {b}" for n in (0, 1)]


def test_refresh_without_a_driver_is_one_line(lab: Lab) -> None:
    (lab.home / "driver").mkdir()

    done = nvct(lab, "refresh", "own")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("nvct: no NVIDIA driver: ")
    assert done.stderr.endswith("[driver-not-found]\n")
    assert done.stderr.count("\n") == 1


def test_nvidia_ctk_hook_is_the_hook_program(lab: Lab) -> None:
    unknown = nvct(lab, "hook", "nosuch", "--flag", program="nvidia_ctk")
    wrong = nvct(lab, "hook", "chmod", "--nosuch", program="nvidia_ctk")

    assert unknown.returncode == 0
    assert "unsupported CDI hook: nosuch" in unknown.stderr
    assert wrong.returncode == 1


def test_nvidia_ctk_hook_does_the_work(lab: Lab) -> None:
    lab.asks()
    state = f'{{"ociVersion": "1.0.2", "id": "x", "bundle": "{lab.bundle}"}}'

    done = nvct(
        lab, "hook", "create-symlinks", "--link", "a::/b", program="nvidia_ctk", data=state
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert os.readlink(lab.bundle / "rootfs/b") == "a"


def test_launchers_are_installed_and_run(lab: Lab) -> None:
    folder = lab.home / "programs"
    folder.mkdir()

    done = nvct(
        lab, "launchers", "install", "--bin-dir", folder, "--form", "sh",
        "--archive", lab.home / "hot.bin",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "nvidia-container-runtime" in os.listdir(folder)
    assert "nvidia-cdi-hook" not in os.listdir(folder)
    assert "not installed: nvidia-cdi-hook, " in done.stderr
    assert "install gcc and libc6-dev" in done.stderr
    said = subprocess.run(
        [folder / "nvidia-container-runtime", "state", "x"],
        env=lab.env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (said.stdout, said.stderr) == ("runc state x\n", "")


def test_launchers_go_only_into_a_folder_that_is_there(lab: Lab) -> None:
    done = nvct(
        lab, "launchers", "install", "--bin-dir", lab.home / "no", "--form", "sh",
        "--archive", lab.home / "hot.bin",
    )  # fmt: skip

    assert done.returncode != 0
    assert str(lab.home / "no") in done.stderr
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
