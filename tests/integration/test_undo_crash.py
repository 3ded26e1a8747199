# SPDX-License-Identifier: Apache-2.0
"""undo of files that the admin edited, killed at any system call: each state names a runtime that
is registered, and the next undo ends as one that was not killed.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.engine import modules
from nvct.engine.journal import Journal
from nvct.engine.model import EngineOptions, Files, Handler
from nvct.engine.transaction import Transaction
from tests.support.forked import run_forked
from tests.support.memory import in_memory
from tests.support.recording_kernel import RecordingKernel

CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
SHIM = "/usr/bin/nvidia-container-runtime"
CRI = 'plugins."io.containerd.cri.v1.runtime".containerd'
BEFORE = f"""\
version = 3
[{CRI}]
default_runtime_name = "runc"
[{CRI}.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
WANTED = EngineOptions(
    engine="containerd",
    handlers=(Handler(name="nvidia", path=SHIM), Handler(name="nvidia-cdi", path=f"{SHIM}.cdi")),
    default="nvidia", cdi=True, config=CONFIG, engine_version=(2, 1, 9),
)  # fmt: skip
ACTS = ("undo", "remove", "remove, damaged")


def _host(root: Path, act: str) -> None:
    """Make a host that is configured, and edited since."""
    shutil.rmtree(root, ignore_errors=True)
    main = root / f"host{CONFIG}"
    main.parent.mkdir(parents=True)
    main.write_text(BEFORE, encoding="utf-8")
    _transaction(root).configure(WANTED)
    text = main.read_text(encoding="utf-8").replace('"nvidia"', '"nvidia-cdi"')
    main.write_text(f"# mine\n{text}", encoding="utf-8")
    for page in (root / "state").glob("*.json"):
        if act == "remove":
            page.unlink()
        elif act == "remove, damaged":
            page.write_text("{", encoding="utf-8")


def _transaction(root: Path, kernel: RecordingKernel | None = None) -> Transaction:
    journal = Journal(f"{root}/state", kernel or RecordingKernel())
    return Transaction(modules.of("containerd"), Files(f"{root}/host"), journal)


def _act(root: Path, act: str, kernel: RecordingKernel | None = None) -> None:
    transaction = _transaction(root, kernel)
    (transaction.undo if act == "undo" else transaction.remove)(WANTED)


def _tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in (root / "host").rglob("*")
        if path.is_file() and not path.name.startswith(".nvct-")  # which no engine reads
    }


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as made:
        yield made


@pytest.mark.parametrize("act", ACTS)
def test_each_state_starts_and_the_next_undo_ends_it(folder: Path, act: str) -> None:
    root, counting = folder / "root", RecordingKernel()
    _host(root, act)
    held = _tree(root)
    _act(root, act, counting)
    ended = _tree(root)
    default = "runc" if act == "undo" else ""
    assert _transaction(root).module.state(WANTED, Files(f"{root}/host")).default == default
    if act == "undo":
        assert ended == {f"host{CONFIG}": f"# mine\n{BEFORE}"}
    seen: dict[str, int] = {}
    for name in counting.names():
        seen[name] = seen.get(name, 0) + 1
        place = (name, "after", seen[name])
        _host(root, act)

        def child(place: tuple[str, str, int] = place) -> None:
            _act(root, act, RecordingKernel(kill_at=place))

        status = run_forked(child)
        assert os.WIFSIGNALED(status), place
        assert os.WTERMSIG(status) == signal.SIGKILL
        for path, text in _tree(root).items():
            assert text in (held.get(path), ended.get(path)), place
        state = _transaction(root).module.state(WANTED, Files(f"{root}/host"))
        assert state.default in {"", *state.handlers}, place
        _act(root, act)
        assert _tree(root) == ended, place
    assert seen["rename"] >= 2
