# SPDX-License-Identifier: Apache-2.0
"""Docker and containerd of a release, running on a simulated node."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim import rootfs, tree
from tests.engines import image, suite
from tests.engines.box import DRIVER_ROOT, REPOSITORY, Box
from tests.engines.configs import PAUSE
from tests.engines.engines import Containerd, Docker, Engine
from tests.engines.releases import FULL, NOT_TESTED, of_release

Kind = TypeVar("Kind", bound=Engine)


class Case(NamedTuple):
    """The parameters of a module's tests."""

    suite: str
    layout: str
    staged: bool


CASES = (Case("trixie", "classic", staged=True),)
IN_FULL = ("configured_crio", "docker_rootless", "docker_today", "runtimes")
"""The first three need what is built on demand."""
collect_ignore = [] if FULL else [f"test_{name}.py" for name in IN_FULL]
CASES_IN_FULL = (
    Case("bookworm", "farm", staged=True),
    Case("trixie", "farm", staged=False),
    Case("forky", "farm", staged=False),
    Case("resolute", "farm", staged=True),
    Case("resolute", "classic", staged=True),
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report releases that were not available; the tests of a required one have failed."""
    moving = tuple(set(suite.SUITES) - set(suite.REQUIRED))
    missing = {}
    for report in terminalreporter.stats.get("skipped", ()):
        case = report.nodeid.partition("[")[2]
        if report.nodeid.startswith("tests/engines/") and case.startswith(moving):
            missing[case.rstrip("]").partition("-")[0]] = report.longrepr
    if missing:
        terminalreporter.section(NOT_TESTED, sep="!", red=True, bold=True)
    for release, reason in sorted(missing.items()):
        terminalreporter.write_line(f"{release}: {reason}")


class Start:
    """Starts an engine of a release.

    Attributes:
        layout: of the driver in containers.
        staged: whether its views are made of bind mounts; else of hard links.
    """

    def __init__(self, case: Case, engines: Path, node: tree.Node, work: Path) -> None:
        self.layout = case.layout
        self.staged = case.staged
        self._engines = engines
        self._node = node
        self._work = work
        self._boxes: list[Box] = []

    def __call__(self, kind: type[Kind]) -> Kind:
        """Return a running engine, or skip."""
        try:
            self._boxes.append(Box(self._engines, self._node, self._work, DRIVER_ROOT))
            return kind(self._boxes[-1], self._node)
        except ContainerNotPossibleError as error:
            pytest.skip(error.message)

    def end(self) -> None:
        """End every engine."""
        for box in self._boxes:
            box.close()


@pytest.fixture(
    scope="module",
    params=[
        of_release(case.suite, case, name=f"{case.suite}-{case.layout}")
        for case in (*CASES, *(CASES_IN_FULL if FULL else ()))
    ],
)
def start(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """Yield a starter of engines of a release; skip if they can't run."""
    engines, node, work = prepare(request.param.suite, tmp_path_factory)
    started = Start(request.param, engines, node, work)
    yield started
    started.end()
    tree.destroy(node)


@pytest.fixture(scope="module")
def machine_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Box]]:
    """Yield a function from a release to this module's machine with its engines, or skip."""
    boxes: dict[str, tuple[Box, tree.Node]] = {}

    def machine(release: str) -> Box:
        if release not in boxes:
            engines, node, work = prepare(release, tmp_path_factory)
            try:
                boxes[release] = Box(engines, node, work, DRIVER_ROOT), node
            except ContainerNotPossibleError as error:
                pytest.skip(error.message)
        return boxes[release][0]

    yield machine
    for box, node in boxes.values():
        box.close()
        tree.destroy(node)


def prepare(
    release: str, tmp_path_factory: pytest.TempPathFactory, profile: str = "h100"
) -> tuple[Path, tree.Node, Path]:
    """Return a release's engines, a node of a profile, and a folder with images; skip if not possible."""
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    try:
        engines = suite.tree(release)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    work = tmp_path_factory.mktemp(release)
    node = tree.create(
        f"test-{os.getpid()}-{profile}", profile, base=work / "nodes",
        native_cache=REPOSITORY / ".cache/native",
    )  # fmt: skip
    images(work)
    return engines, node, work


@pytest.fixture
def layout(start: Start, request: pytest.FixtureRequest) -> str:
    """Write the module's layout to the configuration before each test, and return it."""
    engines = ("engine", "docker", "containerd")
    name = next(each for each in engines if each in request.fixturenames)
    engine: Engine = request.getfixturevalue(name)
    engine.configure(start.layout, staged=start.staged)
    return start.layout


@pytest.fixture(scope="module")
def docker(start: Start) -> Docker:
    """dockerd with the shim as its default runtime."""
    return start(Docker)


@pytest.fixture(scope="module")
def containerd(start: Start) -> Containerd:
    """containerd, and the shim by BinaryName."""
    return start(Containerd)


def images(work: Path) -> None:
    """Write the archives of images: plain, one with a file at the view's path, and a pod's."""
    root = work / "rootfs"
    rootfs.build_rootfs(root)
    image.archive(root, "plain:test", work / "plain.tar")
    image.archive(root, PAUSE, work / "pause.tar", command=("/bin/sleep", "2147483"))
    (root / "usr/local/nvidia").write_text("mine\n", encoding="utf-8")
    image.archive(root, "taken:test", work / "taken.tar")
    (root / "usr/local/nvidia").unlink()
