# SPDX-License-Identifier: Apache-2.0
"""What all tests share: golden files, and the rule about skipped engine tests."""

import asyncio
import contextlib
import gc
import importlib
import inspect
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import memory, missing

# A loaded machine is no bug, so there is no deadline; CI draws the same examples every time, and
# NVCT_TESTS_PROFILE=full (make ci-full) looks for new ones.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile(
    "full", deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck)
)
settings.load_profile(
    os.environ.get("NVCT_TESTS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
)

# Tests fork while gRPC has threads; its own handlers of fork(2) would stop these threads for good.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
DEBUG = "NVCT_DEBUG"
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)
GOLDEN = Path(__file__).parent / "golden"
FAILED = pytest.StashKey[bool]()
TOGETHER = tuple(
    f"tests/kubernetes/{folder}"
    for folder in ("chart", "claims", "configured", "healing", "image", "plugin", "tasks")
)
"""Folders whose files share what takes long to start: one worker runs them, one after the other."""
CLUSTERS = "tests/kubernetes/"
"""How the units begin whose tests start a Kubernetes."""
WORKER_BYTES = 3 << 30
"""What a worker may need: its own memory, and that of a Kubernetes: 1.0 GiB fresh, 2.3 after an hour's pods."""
COLLECT_S = 5.0
"""How long what a failed test has left may take to end: a call of grpc.aio that has no end never does."""
WORKERS = 3
"""For a processor: tests that wait for engines and kubelets leave it idle half of the time with two."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def _required() -> set[str]:
    return set(os.environ.get("NVCT_TESTS_REQUIRE", "").split(","))


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary files into memory, also those of programs that tests start.

    Collect no garbage until all tests are known. Heed SIGINT, which shells without job control ignore in what they start with `&`.
    """
    if not config.getoption("numprocesses", None):  # xdist's first process knows no tests
        gc.disable()
    os.environ.setdefault("TMPDIR", memory.ROOT)
    tempfile.tempdir = None  # pytest has asked for it before, for its own files
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of workers that processors and memory are enough for."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)) * WORKERS, memory // WORKER_BYTES))


def unit_of(test: str) -> str:
    """Return the folder or file that one worker runs, of the id of a test in it."""
    file = test.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist=loadfile, give a worker each file or each folder of TOGETHER."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped] # xdist has called

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        """At most half of the workers run a Kubernetes: each has a dozen busy processes."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def _assign_work_unit(self, node: object) -> None:
            clusters = {
                worker
                for worker, units in self.assigned_work.items()
                for unit, tests in units.items()
                if unit.startswith(CLUSTERS) and not all(tests.values())
            } - {node}
            if len(clusters) >= max(1, len(self.nodes) // 2):
                others = (unit for unit in self.workqueue if not unit.startswith(CLUSTERS))
                self.workqueue.move_to_end(next(others, next(iter(self.workqueue))), last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Compile a worker's share of the tests before it collects all: in a fresh checkout each compiled every one."""
    worker = getattr(session.config, "workerinput", None)
    if worker and not session.config.option.file_or_dir:
        tests = sorted(
            path.relative_to(session.config.rootpath) for path in GOLDEN.parent.rglob("test_*.py")
        )
        for path in tests[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collection reports them
                importlib.import_module(".".join(path.with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put folders and files with slow tests first: no worker has one left when the others are done.

    Each cluster of a folder starts once: pytest itself orders parameters within a file.
    """
    slow = {
        item.path for item in items if {"slow", "engine"} & {m.name for m in item.iter_markers()}
    }

    def place(item: pytest.Item) -> tuple[bool, str, str, bool]:
        unit = unit_of(item.nodeid)
        if unit not in TOGETHER:
            return True, "", "", item.path not in slow
        case = getattr(item, "callspec", None)
        return False, unit, str(case.params.get("cluster", "")) if case else "", False

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Keep modules and tests, which stay, from being looked at by each collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip where there is no compiler; fail instead of a skip where NVCT_TESTS_REQUIRE names the test's mark."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    if report.failed and call.excinfo and missing.lacks_compiler(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {call.excinfo.value}")
    if report.skipped and any(mark.name in _required() for mark in item.iter_markers()):
        report.outcome = "failed"
        report.longrepr = f"a required test was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Remove what a failed test has left open, so that no later test fails for it."""
    is_done = yield
    if item.stash.get(FAILED, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)  # they hold the variables of the test
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        collecting = threading.Thread(target=gc.collect, daemon=True)
        collecting.start()
        collecting.join(COLLECT_S)
        sys.unraisablehook = hook
    return is_done


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what repeats the order of the tests, what was skipped for want of what, and a remedy."""
    seed = terminalreporter.config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"order of the tests: --randomly-seed={seed}")
    skipped = (report.longrepr for report in terminalreporter.stats.get("skipped", []))
    reasons = [parts[2].removeprefix("Skipped: ") for parts in skipped if isinstance(parts, tuple)]
    lines = list(missing.summary(reasons))
    if lines:
        terminalreporter.section("skipped")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _signals_stay() -> Generator[None]:
    """Give the signals back what a program that ran in this process did with them."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _debugging_ends() -> Generator[None]:
    """Forget that a program that ran in this process was called with --debug."""
    before = os.environ.get(DEBUG)
    yield
    if before is None:
        os.environ.pop(DEBUG, None)


@pytest.fixture(autouse=True)
def _nvml_sessions_end() -> Generator[None]:
    """End the workers that this process has for NVML: each test may have other libraries."""
    yield
    if "nvct.host.nvml.session" in sys.modules:
        sys.modules["nvct.host.nvml.session"].close_shared()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME, or write it there with --update-golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run make golden KIND=... and look at it"
        assert text == path.read_text(encoding="utf-8")

    return compare
