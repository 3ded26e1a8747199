# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.journal."""

import json
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.engine import journal as journals
from nvct.engine import undo
from nvct.engine.journal import Entry, Journal, Page, Record
from nvct.engine.model import EngineOptions, Handler, State
from nvct.engine.writing import ABSENT, PathState
from nvct.errors import DocumentError
from tests.support.memory import in_memory

OPTIONS = EngineOptions(
    engine="docker",
    handlers=(Handler(name="nvidia", path="/usr/bin/nvidia-container-runtime"),),
    config="/etc/docker/daemon.json",
    engine_version=(28, 5, 2),
    spec_dirs=("/etc/cdi",),
)


def page(original: bytes | None = b"{}", replacement: bytes | None = b'{"a":1}') -> Page:
    file = PathState(mode=stat.S_IFREG | 0o640, uid=1, gid=2)
    entry = Entry(
        path="/etc/docker/daemon.json", before=file.with_content(original),
        after=file.with_content(replacement), folders=("/etc/docker",),
    )  # fmt: skip
    record = Record(options=OPTIONS, entries=(entry,), restart=True, reloaded=True)
    return Page(done=record, pending=record)


@given(original=st.none() | st.binary(), replacement=st.none() | st.binary())
def test_a_saved_page_is_loaded_unchanged(
    original: bytes | None, replacement: bytes | None
) -> None:
    with in_memory(Path("/tmp")) as folder:
        journal = Journal(str(folder))

        journal.save(f"{folder}/x.json", page(original, replacement))

        assert journal.load(f"{folder}/x.json") == page(original, replacement)


def test_only_the_owner_can_read_a_page(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "state/engines"))
    with journal.lock():
        path = journal.path("docker", "/etc/docker/daemon.json")
        journal.save(path, page())

    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state/engines").stat().st_mode) == 0o700


def test_each_main_file_has_its_own_page(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))

    first = journal.path("containerd", "/etc/containerd/config.toml")
    second = journal.path("containerd", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")

    assert first != second
    assert Path(first).name.startswith("containerd-")


def test_an_empty_page_is_no_file(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    path = journal.path("docker", "x")
    journal.save(path, page())

    journal.save(path, Page())

    assert journal.load(path) == Page()
    assert list(tmp_path.iterdir()) == []
    journal.save(path, Page())  # the second time there is nothing to remove


def test_keys_of_a_newer_nvct_are_passed_over(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    path = tmp_path / "docker-x.json"
    journal.save(str(path), page())
    document = json.loads(path.read_text(encoding="utf-8"))
    document["done"]["options"]["later"] = True
    path.write_text(json.dumps(document), encoding="utf-8")

    assert journal.load(str(path)) == page()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 0}',
        '{"format": 1, "done": {}, "pending": null}',
        "\x00",
        "{",
    ],
)
def test_a_damaged_page_is_reported_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "docker-x.json"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)

    with pytest.raises(DocumentError, match=r"docker-x\.json is damaged: ") as caught:
        Journal(str(tmp_path)).load(str(path))

    assert "move it away" in caught.value.hint


def places(document: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in a document."""
    members: Iterable[tuple[str | int, object]] = ()
    if isinstance(document, (dict, list)):
        members = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in members:
        yield (*path, key)
        yield from places(value, (*path, key))


# As nvct wrote them before: of an engine, and of `doctor --fix`.
FORMAT_1_ENGINE = {
    "format": 1,
    "done": {
        "wanted": {
            "engine": "docker",
            "handlers": [{"name": "nvidia", "path": "/usr/bin/nvidia-container-runtime"}],
            "default": "", "cdi": False, "spec_dirs": ["/etc/cdi"],
            "config": "/etc/docker/daemon.json", "engine_version": [28, 5, 2],
        },
        "entries": [
            {
                "path": "/etc/docker/daemon.json", "original": None, "ours": '{"a":"\udce9"}',
                "mode": 0o640, "uid": 1, "gid": 2, "folders": ["/etc/docker"],
            },
            {
                "path": "/etc/x", "original": "b", "ours": None,
                "mode": 0o600, "uid": 0, "gid": 0, "folders": [],
            },
        ],
        "restart": True, "told": True,
    },
    "pending": None,
}  # fmt: skip
FORMAT_1_FIX = {
    "format": 1,
    "done": None,
    "pending": {
        "boot": "one",
        "entries": [
            {
                "path": "/etc/cdi/nvidia.yaml",
                "before": {"mode": 0, "uid": 0, "gid": 0, "rdev": 0, "data": ""},
                "after": {"mode": 33188, "uid": 0, "gid": 0, "rdev": 0, "data": "bmV36Q=="},
                "folders": ["/etc/cdi"], "identity": "",
            },
            {
                "path": "/dev/nvidia0",
                "before": {"mode": 0, "uid": 0, "gid": 0, "rdev": 0, "data": ""},
                "after": {"mode": 8630, "uid": 0, "gid": 0, "rdev": 49920, "data": ""},
                "folders": [], "identity": "12:34",
            },
        ],
    },
}  # fmt: skip


def test_a_page_of_an_engine_in_format_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "docker-x.json"
    path.write_text(json.dumps(FORMAT_1_ENGINE), encoding="utf-8")
    path.chmod(0o600)

    loaded = Journal(str(tmp_path)).load(str(path))

    made = PathState(mode=stat.S_IFREG | 0o640, uid=1, gid=2).with_content(b'{"a":"\xe9"}')
    removed = PathState(mode=stat.S_IFREG | 0o600).with_content(b"b")
    config = "/etc/docker/daemon.json"
    assert loaded.pending is None
    assert loaded.done == Record(
        options=OPTIONS, restart=True, reloaded=True,
        entries=(
            Entry(path=config, before=ABSENT, after=made, folders=("/etc/docker",)),
            Entry(path="/etc/x", before=removed, after=ABSENT),
        ),
    )  # fmt: skip


def test_the_journal_of_fix_in_format_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "doctor.journal"
    path.write_text(json.dumps(FORMAT_1_FIX), encoding="utf-8")
    path.chmod(0o600)

    loaded = Journal(str(tmp_path)).load(str(path))

    spec = PathState(mode=stat.S_IFREG | 0o644).with_content(b"new\xe9")
    node = PathState(mode=stat.S_IFCHR | 0o666, rdev=49920)
    assert loaded.done is None
    assert loaded.pending == Record(
        boot="one",
        entries=(
            Entry(path="/etc/cdi/nvidia.yaml", before=ABSENT, after=spec, folders=("/etc/cdi",)),
            Entry(path="/dev/nvidia0", before=ABSENT, after=node, identity="12:34"),
        ),
    )


@pytest.mark.parametrize("former", ["", "engine", "fix"])
@pytest.mark.parametrize("value", [None, True, 7, "x", "\ud800", [], [7], ["x"], {}, {"x": 7}])
def test_a_value_of_another_kind_is_damage_or_read_unchanged(
    tmp_path: Path, value: object, former: str
) -> None:
    journal = Journal(str(tmp_path))
    path = tmp_path / "docker-x.json"
    journal.save(str(path), page())
    good = path.read_text(encoding="utf-8")
    if former:
        good = json.dumps(FORMAT_1_FIX if former == "fix" else FORMAT_1_ENGINE)
    refused = 0
    for *above, last in places(json.loads(good)):
        document = inside = json.loads(good)
        for key in above:
            inside = inside[key]
        inside[last] = value
        path.write_text(json.dumps(document), encoding="utf-8")
        try:
            page_read = journal.load(str(path))
        except journals.DamagedJournalError:
            refused += 1
        else:
            journal.save(str(path), page_read)
            assert page_read == Page() or journal.load(str(path)) == page_read
    assert refused


def test_a_malformed_path_is_refused(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    path = tmp_path / "docker-x.json"
    journal.save(str(path), page())
    text = path.read_text(encoding="utf-8").replace('"/etc/docker/daemon.json"', '"daemon.json"')
    path.write_text(text, encoding="utf-8")

    with pytest.raises(DocumentError, match=r"'daemon\.json' is not an absolute path"):
        journal.load(str(path))


def test_foreign_settings_are_not_undone() -> None:
    path = "/usr/bin/nvidia-container-runtime"
    more = Handler(name="nvidia-cdi", path=f"{path}.cdi")
    options = replace(OPTIONS, handlers=(*OPTIONS.handlers, more), default="nvidia", cdi=True)
    state = State(handlers={"nvidia": path, "runc": ""}, default="nvidia", cdi=True)

    to_undo = undo.options_to_undo(options, state, None)
    assert (to_undo.handlers, to_undo.default, to_undo.cdi) == ((more,), "", False)
    named = replace(state, spec_dirs=OPTIONS.spec_dirs)
    assert undo.options_to_undo(options, named, None).spec_dirs == ()
    assert undo.options_to_undo(options, named, page().done).spec_dirs == OPTIONS.spec_dirs
    assert undo.options_to_undo(options, State(handlers={}), None) == options
    assert undo.options_to_undo(options, state, page().done).handlers == options.handlers


def test_our_earlier_settings_are_undone_and_a_handler_gets_its_new_path() -> None:
    moved = Handler(name="nvidia", path="/opt/bin/nvidia-container-runtime")
    record = Record(options=replace(OPTIONS, default="nvidia", cdi=True), entries=())
    state = State(handlers={"nvidia": moved.path}, default="nvidia", cdi=True)
    options = EngineOptions(engine="docker", handlers=(moved,))

    to_undo = undo.options_to_undo(options, state, record)
    assert (to_undo.handlers, to_undo.cdi) == ((moved,), True)
    assert (
        undo.options_to_undo(replace(options, default="nvidia"), state, record).default == "nvidia"
    )
