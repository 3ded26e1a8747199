# SPDX-License-Identifier: Apache-2.0
"""A simulated node, and a machine on which MIG can be changed."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct.host.nvml.session import NvmlSession
from nvct.host.roots import Roots
from nvct.mig.apply import Machine
from nvct.mig.journal import Journal
from nvct_sim import tree
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE


@dataclass
class Resets:
    """Records which GPUs would be reset."""

    bus_ids: list[str] = field(default_factory=list)

    def __call__(self, bus_ids: Sequence[str]) -> None:
        self.bus_ids += bus_ids


@pytest.fixture
def node(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tree.Node]:
    """A node of 8 A100 80GB, or of the profile that a test is parametrized with."""
    profile = getattr(request, "param", "a100-80")
    try:
        with in_memory(tmp_path_factory.mktemp("nodes")) as folder:
            node = tree.create(profile, profile, folder, native_cache=CACHE)
            monkeypatch.setitem(os.environ, "NVCT_SIM_DEV", str(node.dev))
            yield node
            tree.destroy(node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


def library_of(node: tree.Node) -> str:
    return f"{node.library_dir}/libnvidia-ml.so.{node.installed}"


def roots_of(node: tree.Node) -> Roots:
    return Roots(
        driver_root=str(node.driver_root), dev_root=str(node.tree), proc=str(node.proc),
        sys=str(node.sys),
    )  # fmt: skip


@pytest.fixture
def machine(node: tree.Node, tmp_path: Path) -> Iterator[Machine]:
    session = NvmlSession(library_of(node))
    yield Machine(
        session=session, roots=roots_of(node), journal=Journal(str(tmp_path / "run")),
        reset=Resets(),
    )  # fmt: skip
    session.close()
