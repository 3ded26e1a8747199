# SPDX-License-Identifier: Apache-2.0
"""The imports of the modules that read the request, on every create."""

from __future__ import annotations

import os
import subprocess
import sys

import nvct

PROGRAM = """
import sys
before = set(sys.modules)
sys.path.append(sys.argv[1])
from nvct.config.model import Config, check, path_from
from nvct.container.request.resolve import resolve_request
config = Config(mode=sys.argv[2], accept_volume_mounts=True)
env = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_IMEX_CHANNELS=1"]
assert resolve_request(env, [], {"cdi.k8s.io/a": ""}, [], config)[0].ids == ["0"]
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def modules(mode: str) -> set[str]:
    root = os.path.dirname(next(iter(nvct.__path__)))
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, root, mode]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(result.stdout.split())


def test_only_hot_modules_of_nvct_are_imported() -> None:
    foreign = {name for name in modules("legacy") if not name.startswith("nvct")}

    # What every module's first statement imports.
    assert foreign == {"__future__"}


def test_modules_for_missing_requests_are_not_imported() -> None:
    # Only legacy mode has defaults for a missing NVIDIA_DRIVER_CAPABILITIES.
    assert modules("legacy") - modules("auto") == {"nvct.container.request.capabilities"}
