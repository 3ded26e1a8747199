# SPDX-License-Identifier: Apache-2.0
"""A simulated node for the tests that start real containers."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim import rootfs, tree
from tests.support import debian_root
from tests.support.on_node import run_in

Part: TypeAlias = Callable[[Path], None]
"""A module-level function that runs inside a node; it gets the work folder."""
REPOSITORY = Path(__file__).parents[2]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly that an Ubuntu could not be had; a Debian that could not has failed."""
    for report in terminalreporter.stats.get("skipped", ()):
        place = report.nodeid.partition("[")[2]
        if report.nodeid.startswith("tests/integration/") and place.startswith(debian_root.UBUNTU):
            terminalreporter.section(debian_root.UBUNTU_NOT_TESTED, sep="!", red=True, bold=True)
            terminalreporter.write_line(str(report.longrepr))
            return


@dataclass
class SimulatedNode:
    """A node, a folder to work in, and a root file system for containers."""

    node: tree.Node
    work: Path
    rootfs: Path

    def run(self, function: Part, env: Mapping[str, str] | None = None) -> None:
        """Run a function inside the node, in a process of its own; what it raises fails the test."""
        module, name = function.__module__, function.__name__
        code = (
            f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from pathlib import Path; "
            f"import {module} as m; m.{name}(Path(sys.argv[1]))"
        )
        programs = str(Path(sys.executable).parent)
        full = {"PATH": ":".join([programs, *DEFAULT_PATH_DIRS]), **(env or {})}
        done = run_in(self.node, [sys.executable, "-c", code, str(self.work)], full)
        if done.stderr.startswith("SKIP: "):
            pytest.skip(done.stderr.removeprefix("SKIP: ").strip())
        assert done.returncode == 0, f"{name} failed inside the node:\n{done.stdout}{done.stderr}"
        print(done.stdout)


@pytest.fixture
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    """A node of eight H100s, one of them in MIG mode; skips where containers can't run."""
    yield from simulate("h100-mig", tmp_path_factory.mktemp("node"))


def simulate(profile: str, work: Path) -> Iterator[SimulatedNode]:
    """Yield a node of a profile in a folder; skips where containers can't run."""
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    node = tree.create(
        f"test-{os.getpid()}",
        profile,
        base=work / "nodes",
        native_cache=REPOSITORY / ".cache/native",
    )
    base = work / "rootfs"
    rootfs.build_rootfs(base)
    yield SimulatedNode(node, work, base)
    tree.destroy(node)
