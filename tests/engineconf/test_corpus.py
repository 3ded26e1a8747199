# SPDX-License-Identifier: Apache-2.0
"""Every configuration file of the corpus through configure twice and undo. See README.md here."""

import difflib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nvct.config import toml_file
from nvct.engine import containerd_load, modules
from nvct.engine.journal import Journal
from nvct.engine.model import Change, EngineOptions, Files, Handler
from nvct.engine.transaction import Transaction
from nvct.errors import DocumentError
from tests.support.memory import in_memory

HERE = Path(__file__).parent
SUFFIXES = (".toml", ".json", ".conf")
HANDLERS = tuple(
    Handler(name=name, path=f"/usr/bin/nvidia-container-runtime{suffix}")
    for name, suffix in (("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))
)
VERSIONS = {"": (), "@2.1": (2, 1, 9)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One file or tree, for an engine of some version."""

    engine: str
    source: Path
    version: str = ""

    @property
    def name(self) -> str:
        relative = self.source.relative_to(HERE)
        return str(relative.with_suffix("") if self.source.is_file() else relative) + self.version

    def options(self) -> EngineOptions:
        return EngineOptions(
            engine=self.engine,
            handlers=HANDLERS,
            cdi=self.engine in ("docker", "containerd"),
            config=modules.CONFIG[self.engine],
            drop_in="" if self.engine == "docker" else None,
            engine_version=VERSIONS[self.version],
        )

    def lay_out(self, root: Path) -> None:
        """Make the host's files."""
        if self.source.is_dir():
            shutil.copytree(self.source, root, symlinks=True, dirs_exist_ok=True)
            return
        target = root / modules.CONFIG[self.engine].lstrip("/")
        target.parent.mkdir(parents=True)
        target.write_bytes(self.source.read_bytes())


def _found(engine: str, folder: Path) -> Iterator[Case]:
    versions = VERSIONS if engine == "containerd" else ("",)
    for source in sorted(folder.iterdir()) if folder.is_dir() else []:
        if source.suffix in SUFFIXES or (source.is_dir() and source.name != "refused"):
            yield from (
                Case(engine=engine, source=source, version=version) for version in versions
            )


CASES = [case for engine in modules.ENGINES for case in _found(engine, HERE / engine)]
REFUSED = [
    case for engine in modules.ENGINES for case in _found(engine, HERE / engine / "refused")
]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as test_folder:
        yield test_folder


def _transaction(root: Path, engine: str) -> Transaction:
    journal = Journal(str(root.with_name("state")))
    return Transaction(modules.of(engine), Files(str(root)), journal)


def _tree(root: Path) -> dict[str, bytes]:
    return {
        f"/{path.relative_to(root)}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _diff(completed: Change) -> str:
    """Return edits and notes as people read them."""
    lines = [f"# {note}\n" for note in completed.notes]
    for edit in completed.edits:
        old, new = (
            (data or b"").decode("utf-8", "backslashreplace").splitlines(keepends=True)
            for data in (edit.before, edit.after)
        )
        lines += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(old, new, edit.path, edit.path, n=2)
        ]
    return "".join(lines).replace("\r\n", "\\r\n") or "unchanged\n"


def _parsed(path: str, data: bytes) -> Any:
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if path.endswith(".json"):
        return json.loads(text or "{}")
    return toml_file.parse(data, path)


def _lost(old: Any, new: Any, where: str = "") -> list[str]:
    """Return what a document says no more: lists may grow, tables may get more keys."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key, value in old.items()
            for line in (
                _lost(value, new[key], f"{where}/{key}") if key in new else [f"{where}/{key}"]
            )
        ]
    if isinstance(old, list) and isinstance(new, list):
        return [f"{where}: {item!r}" for item in old if item not in new]
    return [] if old == new else [f"{where}: {old!r} is {new!r}"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_configure_twice_and_undo(
    case: Case, folder: Path, golden: Callable[[str, str], None]
) -> None:
    root = folder / "host"
    case.lay_out(root)
    before = _tree(root)
    transaction = _transaction(root, case.engine)

    outcome = transaction.configure(case.options())

    after = _tree(root)
    golden(f"engineconf/{case.name}.diff", _diff(outcome))
    assert transaction.module.state(case.options(), transaction.files).handlers.items() >= {
        (handler.name, handler.path) for handler in HANDLERS
    }
    second_outcome = transaction.configure(case.options())
    assert second_outcome.edits == ()
    assert _tree(root) == after
    transaction.undo(case.options())
    assert _tree(root) == before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_foreign_settings_survive(case: Case, folder: Path) -> None:
    root = folder / "host"
    case.lay_out(root)
    before = _tree(root)

    _transaction(root, case.engine).configure(case.options())

    after = _tree(root)
    for path, data in before.items():
        old, new = (each.decode("latin-1") for each in (data, after[path]))
        comments = [line for line in old.splitlines() if line.lstrip().startswith("#")]
        remaining = new.splitlines()
        for line in comments:
            assert line in remaining, path
            remaining.remove(line)
        lost = _lost(_parsed(path, data), _parsed(path, after[path]))
        assert [line for line in lost if not _is_ours(line)] == [], path
        assert ("\r\n" in new) == ("\r\n" in old) or not old, path


def _is_ours(line: str) -> bool:
    """Tell whether a difference is what was asked for: our handlers, and CDI."""
    return any(word in line for word in ("nvidia", "enable_cdi", "/cdi:"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_only_our_part_is_removed_from_a_file_that_others_changed(
    case: Case, folder: Path
) -> None:
    root = folder / "host"
    case.lay_out(root)
    transaction = _transaction(root, case.engine)
    had = dict(transaction.module.state(case.options(), transaction.files).handlers)
    outcome = transaction.configure(case.options())
    for edit in outcome.edits:
        if edit.after is not None:
            _add_a_line(root / edit.path.lstrip("/"))

    transaction.undo(case.options())

    remaining = transaction.module.state(case.options(), transaction.files).handlers
    our_handlers = [(handler.name, handler.path) for handler in HANDLERS]
    expected = {name: path for name, path in had.items() if not name.startswith("nvidia")}
    assert {
        name: path for name, path in remaining.items() if not name.startswith("nvidia")
    } == expected
    assert [
        name for name, path in our_handlers if remaining.get(name) == path != had.get(name)
    ] == []
    assert [
        name for name, path in our_handlers if had.get(name) == path and name not in remaining
    ] == []


def _add_a_line(path: Path) -> None:
    """Change a file as its owner might."""
    data = path.read_bytes()
    if path.suffix == ".json":
        at = data.rindex(b"}")
        path.write_bytes(data[:at] + b"\n" + data[at:])
        return
    end = b"\r\n" if b"\r\n" in data else b"\n"
    path.write_bytes(data + (b"" if data.endswith(end) else end) + b"# by somebody else" + end)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_files_that_cannot_be_edited_are_not_changed(
    case: Case, folder: Path, golden: Callable[[str, str], None]
) -> None:
    root = folder / "host"
    case.lay_out(root)
    before = _tree(root)

    with pytest.raises(DocumentError) as caught:
        _transaction(root, case.engine).configure(case.options())

    assert _tree(root) == before
    hint = f"\n{caught.value.hint}" if caught.value.hint else ""
    golden(f"engineconf/{case.name}.txt", f"{caught.value.message}{hint}\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_default_is_set_and_undone(case: Case, folder: Path) -> None:
    root = folder / "host"
    case.lay_out(root)
    before = _tree(root)
    transaction = _transaction(root, case.engine)
    options = replace(case.options(), default="nvidia")

    transaction.configure(options)

    assert transaction.module.state(options, transaction.files).default == "nvidia"
    assert transaction.configure(options).edits == ()
    transaction.undo(options)
    assert _tree(root) == before


def _drivers(root: Path, case: Case) -> dict[str, bool]:
    """Return whether each runtime of containerd has the cgroup driver systemd."""
    config = containerd_load.load(case.options(), Files(str(root)))
    cri = config.effective()
    tables = cri.runtimes
    if cri.legacy:
        tables["default"] = cri.legacy
    return {name: cri.systemd_cgroup(table) for name, table in tables.items()}


@pytest.mark.parametrize("default", ["", "nvidia"])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.engine == "containerd"], ids=lambda case: case.name
)
def test_no_cgroup_driver_changes(case: Case, folder: Path, default: str) -> None:
    root = folder / "host"
    case.lay_out(root)
    transaction = _transaction(root, case.engine)
    before = _drivers(root, case)
    name = transaction.module.state(case.options(), transaction.files).default or "runc"
    if "kata" in name:  # it has options of its own
        name = "runc"
    usual = before.get(name, before.get("runc", False))

    for _ in range(2):
        transaction.configure(replace(case.options(), default=default))

    after = _drivers(root, case)
    assert {name: after[name] for name in before if name in after} == {
        name: driver for name, driver in before.items() if name in after
    }
    new = {handler.name for handler in HANDLERS} - before.keys()
    assert {name: after[name] for name in new} == dict.fromkeys(new, usual)


def test_the_corpus_is_large_enough() -> None:
    assert len({case.source for case in (*CASES, *REFUSED)}) >= 60
