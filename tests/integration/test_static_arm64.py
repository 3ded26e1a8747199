# SPDX-License-Identifier: Apache-2.0
"""nvct-hot for arm64, under qemu's user mode: the image that was taken there starts and works.

Building its interpreter takes half an hour of a small machine, so that it is done by hand
(packaging/static/README.md); NVCT_TESTS_HOT_ARM64 names the file.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import captured
from tests.support.shim_lab import Lab

HOT_ENV = "NVCT_TESTS_HOT_ARM64"
EMULATOR = "qemu-aarch64-static"


@pytest.fixture
def program() -> list[str]:
    named = os.environ.get(HOT_ENV)
    emulator = shutil.which(EMULATOR)
    if not named:
        pytest.skip(f"{HOT_ENV} names no nvct-hot for arm64")
    if emulator is None:
        pytest.skip(f"needs {EMULATOR}")
    return [emulator, named, "--cold", "/no/cold"]


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.remove()


def run(words: list[str], lab: Lab, state: str = "") -> subprocess.CompletedProcess[str]:
    return captured(words, env=lab.env, cwd=lab.home, input=state, timeout=60)


def test_other_commands_are_handed_over(program: list[str], lab: Lab) -> None:
    lab.asks()
    lab.create()  # what reads config.toml is of this machine
    done = run([*program, "nvidia-container-runtime", "state", "x"], lab)

    assert (done.returncode, done.stdout, done.stderr) == (0, "runc state x\n", "")


def test_a_container_without_gpu_is_created(program: list[str], lab: Lab) -> None:
    lab.asks()
    lab.create()
    before = lab.config_json.read_bytes()
    words = ["nvidia-container-runtime", "create", "--bundle", str(lab.bundle), "x"]
    done = run([*program, *words], lab)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"runc create --bundle {lab.bundle} x\n"
    assert lab.config_json.read_bytes() == before


def test_a_device_gets_into_config_json_as_by_an_interpreter(program: list[str], lab: Lab) -> None:
    lab.spec(kind="acme.com/gpu")
    lab.asks(annotations={"cdi.k8s.io/x": "acme.com/gpu=0"})
    asked = lab.config_json.read_bytes()
    assert lab.create().status == 0
    changed = lab.config_json.read_bytes()
    lab.config_json.write_bytes(asked)
    words = ["nvidia-container-runtime", "create", "--bundle", str(lab.bundle), "x"]
    done = run([*program, *words], lab)

    assert (done.returncode, done.stderr) == (0, "")
    assert lab.config_json.read_bytes() == changed != asked


def test_a_hook_changes_a_root(program: list[str], lab: Lab) -> None:
    lab.asks()
    state = {"ociVersion": "1.0.2", "id": "x", "pid": 1, "bundle": str(lab.bundle)}
    words = ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"]
    done = run([*program, *words], lab, json.dumps(state))

    assert (done.returncode, done.stderr) == (0, "")
    link: Path = lab.bundle / "rootfs/usr/lib/libcuda.so"
    assert os.readlink(link) == "libcuda.so.1"
