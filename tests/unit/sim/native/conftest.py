# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the built library, a node, and nvidia-ml-py with that node's library."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pynvml
import pytest

from nvct_sim.native import build as native
from tests.support.nvml_node import CACHE, NvmlNode, make_node


@pytest.fixture(scope="session")
def built() -> dict[str, Path]:
    return native.build(CACHE, strict=True)


@pytest.fixture
def node(tmp_path: Path, built: dict[str, Path]) -> NvmlNode:
    return make_node(tmp_path / "node", built)


@pytest.fixture
def nvml(node: NvmlNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return nvidia-ml-py with this node's library, not initialised."""
    monkeypatch.setenv("NVCT_SIM_DEV", str(node.dev))
    library, module = ctypes.CDLL(str(node.library)), cast("Any", pynvml)
    module._nvmlGetFunctionPointer_cache.clear()
    module.nvmlLib = library
    yield module
    while library.nvmlShutdown() == 0:
        pass
    module._nvmlGetFunctionPointer_cache.clear()
    module.nvmlLib = None
