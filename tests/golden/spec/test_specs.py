# SPDX-License-Identifier: Apache-2.0
"""Specs of whole machines, byte for byte; the machine's folder reads $HOST."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.cdi.make.generate import Options, generate
from nvct.host.discover import discover
from tests.support.host_tree import FakeNvml, HostTree, nvml_gpu

OPTIONS = {
    "default": Options(),
    "type-index-no-all": Options(device_name_strategies=("type-index",), all_device=False),
    "numbers-no-hooks": Options(node_numbers=True, disabled_hooks=("all",)),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("machine", ["one-gpu", "mig"])
def test_spec_is_as_recorded(
    tmp_path: Path, golden: Callable[[str, str], None], machine: str, options: str
) -> None:
    host = HostTree(tmp_path).module().user_space().gpu(0)
    nvml = FakeNvml(gpus=(nvml_gpu(0), nvml_gpu(1, instances=((7, 0), (9, 0)))))
    if machine == "mig":
        host.gpu(1).instance(1, 7, 0, (66, 67)).instance(1, 9, 0, (84, 85))

    found = discover(host.roots, host.options(nvml))
    spec = generate(found, OPTIONS[options])

    text = json.dumps(spec, indent=2).replace(str(tmp_path), "$HOST")
    golden(f"spec/{machine}-{options}.json", text + "\n")
