# SPDX-License-Identifier: Apache-2.0
"""The program nvidia-device-plugin of nvct, recorded as NVIDIA's was, gives the same recordings.

One node and the cases that differ in what happens beside the answers; `test_device_plugin` has the
others without a program.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError, HostError
from nvct_sim import tree
from tests.peer import plugin
from tests.peer.__main__ import RECORDED, REPOSITORY
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.support.on_node import run_in

pytestmark = pytest.mark.engine
NODE = "v100-8"
CASES = ("envvar", "device-specs", "cdi-cri")
SCRIPT = """#!/bin/sh
exec {python} -I -m nvct.agent.core.program nvidia-device-plugin "$@"
"""
RECORD = """
import subprocess, sys
from pathlib import Path
from tests.peer import cases, plugin
from tests.peer.kubelet import FOLDER
subprocess.run(["mount", "-t", "tmpfs", "nvct-peer", "/var/lib"], check=True)
Path(FOLDER).mkdir(parents=True)
programs, name, target, work = (Path(word) for word in sys.argv[1:])
plugin.record(programs, str(name), target, work)
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder with what the program answered on a node."""
    work = tmp_path_factory.mktemp("peer")
    program = work / plugin.PROGRAM
    program.write_text(SCRIPT.format(python=sys.executable))
    program.chmod(0o755)
    try:
        with in_memory(work) as folder:
            node = tree.create(NODE, NODE, folder, native_cache=CACHE)
            target = work / "recorded"
            words = [sys.executable, "-c", RECORD, str(work), NODE, str(target), str(work)]
            env = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
            done = run_in(node, words, env, driver_root="/", cwd=str(REPOSITORY))
            assert done.returncode == 0, done
            yield target
            tree.destroy(node)
    except (ContainerNotPossibleError, HostError) as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("case", CASES)
def test_the_recording_is_the_incumbents(recordings: Path, case: str) -> None:
    ours, theirs = (
        json.loads((folder / f"{case}.json").read_text("utf-8"))
        for folder in (recordings, RECORDED / NODE / "device-plugin")
    )
    # The recorder keeps the order of UUIDs, which is that of the machine here.
    for answers in (ours, theirs):
        for asked in answers["resources"]["nvidia.com/gpu"]["allocate"]:
            envs = asked["answer"].get("envs", {})
            for name, value in envs.items():
                envs[name] = sorted(value.split(","))

    assert ours == theirs
