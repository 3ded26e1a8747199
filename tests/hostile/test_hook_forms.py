# SPDX-License-Identifier: Apache-2.0
"""Hooks of specs without `env`, in each form in which they are installed, started by a real runc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvct.launcher import install as launch
from tests.hostile import hook_attack
from tests.integration.conftest import SimulatedNode
from tests.integration.inside import make
from tests.support import hot as static

pytestmark = pytest.mark.engine
PROGRAMS_ENV = "NVCT_TESTS_HOOK_PROGRAMS"


def attacked(work: Path) -> None:
    """Run the attack in the node."""
    make(work, "plain", "exit 0", env=[])
    hook_attack.build(work)
    programs = os.environ[PROGRAMS_ENV].split(":")
    command = [sys.executable, "-I", hook_attack.__file__, str(work), *programs]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    print(result.stdout)


def attack(node: SimulatedNode, folder: Path) -> None:
    programs = ":".join(str(folder / name) for name in hook_attack.COMMANDS)
    node.run(attacked, {PROGRAMS_ENV: programs})


def test_programs_of_this_checkout(simulated: SimulatedNode) -> None:
    attack(simulated, Path(sys.executable).parent)


def test_nvct_hot_under_its_names(simulated: SimulatedNode, tmp_path: Path) -> None:
    hot = static.executable(tmp_path)
    built = launch.Built(python="/none", packages="/none", cold="/none", hot=str(hot))
    (tmp_path / "bin").mkdir()
    launch.install(tmp_path / "bin", "static", built)

    attack(simulated, tmp_path / "bin")


def test_launchers_that_start_nvct_hot(simulated: SimulatedNode, tmp_path: Path) -> None:
    hot = static.executable(tmp_path)
    built = launch.Built(python="/none", packages="/none", cold="/none", hot=str(hot))
    (tmp_path / "bin").mkdir()
    launch.install(tmp_path / "bin", "c", built, archive=False)

    attack(simulated, tmp_path / "bin")
