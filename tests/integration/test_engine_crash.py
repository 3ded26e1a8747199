# SPDX-License-Identifier: Apache-2.0
"""A change of an engine that is killed at any system call leaves an engine that starts.

Every file is whole, as before or as planned, and in an order that the engine can read; the next
configure and the next undo go on as if the killed run had not been.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.engine.journal import Journal
from nvct.engine.model import Files
from nvct.engine.transaction import Transaction
from tests.support.engine_pair import EXTRA, MAIN, Pair, PairControl, options, starts
from tests.support.forked import run_forked
from tests.support.memory import in_memory
from tests.support.recording_kernel import RecordingKernel

BEFORE = b"# mine\n"
CONFIGURED = BEFORE + b"import extra\n"
HANDLER = b"handler nvidia=/usr/bin/nvidia\n"


def _host(root: Path, act: str) -> None:
    shutil.rmtree(root, ignore_errors=True)
    (root / "etc/pair").mkdir(parents=True)
    (root / MAIN.lstrip("/")).write_bytes(BEFORE)
    if act == "undo":
        _transaction(root).configure(options())


def _transaction(root: Path, kernel: RecordingKernel | None = None) -> Transaction:
    journal = Journal(f"{root}/state", kernel or RecordingKernel())
    return Transaction(Pair, Files(str(root)), journal, PairControl())


def _act(root: Path, act: str, kernel: RecordingKernel | None = None) -> None:
    transaction = _transaction(root, kernel)
    (transaction.configure if act == "configure" else transaction.undo)(options())


def _held(root: Path) -> tuple[bytes | None, bytes | None]:
    found = []
    for name in (MAIN, EXTRA):
        path = root / name.lstrip("/")
        found.append(path.read_bytes() if path.exists() else None)
    return found[0], found[1]


def _drop_ins(root: Path) -> list[str]:
    """Return what is in the folder of drop-ins: an engine may read it whatever its name."""
    folder = (root / EXTRA.lstrip("/")).parent
    return os.listdir(folder) if folder.exists() else []


def _places(root: Path, act: str) -> list[tuple[str, str, int]]:
    counting = RecordingKernel()
    _host(root, act)
    _act(root, act, counting)
    seen: dict[str, int] = {}
    places = []
    for name in counting.names():
        seen[name] = seen.get(name, 0) + 1
        places += [(name, when, seen[name]) for when in ("before", "after")]
    assert {"rename", "write", "fsync"} <= set(seen)
    return places


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as made:
        yield made


@pytest.mark.parametrize("act", ["configure", "undo"])
def test_the_engine_starts_and_the_next_run_goes_on(folder: Path, act: str) -> None:
    root, copy = folder / "host", folder / "copy"
    results = set()
    for place in _places(root, act):
        _host(root, act)

        def child(place: tuple[str, str, int] = place) -> None:
            _act(root, act, RecordingKernel(kill_at=place))

        status = run_forked(child)
        assert os.WIFSIGNALED(status), place
        assert os.WTERMSIG(status) == signal.SIGKILL
        main, extra = _held(root)
        assert main in (BEFORE, CONFIGURED), place
        assert extra in (None, HANDLER), place
        assert starts(main, extra), place
        assert set(_drop_ins(root)) <= {Path(EXTRA).name}, place
        results.add((main, extra))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        _act(copy, "configure")
        assert _held(copy) == (CONFIGURED, HANDLER), place
        for host in (copy, root):
            _act(host, "undo")
            assert _held(host) == (BEFORE, None), place
            assert Journal(f"{host}/state").paths() == [], place
    assert len(results) >= 3
