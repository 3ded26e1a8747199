# SPDX-License-Identifier: Apache-2.0
"""Containers that ask for free GPUs on a host without a scheduler."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from nvct.paths import DEFAULT_PATH_DIRS
from tests.integration import free_inside
from tests.integration.conftest import REPOSITORY, Part, SimulatedNode

ENTER = """
import importlib, pickle, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from nvct_sim import attach
node, module, function, work = pickle.loads(bytes.fromhex(sys.argv[2]))
attach.enter(node, host_run=False)
getattr(importlib.import_module(module), function)(Path(work))
"""


def run_alone(simulated: SimulatedNode, part: Part) -> None:
    """Run a function inside the node, where no process of another test is seen."""
    task = (simulated.node, part.__module__, part.__name__, str(simulated.work))
    done = subprocess.run(
        [
            "unshare", "--pid", "--mount-proc", "--fork", "--kill-child",
            sys.executable, "-c", ENTER, str(REPOSITORY), pickle.dumps(task).hex(),
        ],
        check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={"PATH": ":".join([str(Path(sys.executable).parent), *DEFAULT_PATH_DIRS]),
             "HOME": os.environ.get("HOME", "/root"),
             "NVCT_TESTS_PROFILE": os.environ.get("NVCT_TESTS_PROFILE", "")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.engine
def test_a_container_has_a_free_gpu_while_it_lives(simulated: SimulatedNode) -> None:
    run_alone(simulated, free_inside.life)


@pytest.mark.engine
def test_who_names_a_gpu_uses_it(simulated: SimulatedNode) -> None:
    run_alone(simulated, free_inside.others_count)


@pytest.mark.engine
@pytest.mark.slow
def test_two_never_have_one_gpu_and_none_stays(simulated: SimulatedNode) -> None:
    run_alone(simulated, free_inside.storm)
