# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.engine.transaction: whole or not at all, and back to the byte."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nvct.engine.journal import Entry, Journal, Page
from nvct.engine.model import Change, EngineOptions, FileEdit, Files
from nvct.engine.modules import Module
from nvct.engine.path_changes import PathChanges
from nvct.engine.transaction import Transaction
from nvct.engine.writing import ABSENT, PathState
from nvct.errors import DocumentError, EngineConfigError, EngineError, HostError
from tests.support.engine_pair import EXTRA, MAIN, Pair, PairControl, options
from tests.support.recording_kernel import RecordingKernel

BEFORE = b"# mine\r\nkeep this\n"


@dataclass
class Host:
    """A tree with the engine's main file in it."""

    root: Path
    module: Module

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> bytes | None:
        path = self.path(name)
        return path.read_bytes() if path.exists() else None

    def write(self, data: bytes, name: str = MAIN) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    @property
    def journal(self) -> Journal:
        return Journal(str(self.root / "state"))

    def transaction(self, control: PairControl | None = None) -> Transaction:
        return Transaction(self.module, Files(str(self.root)), self.journal, control)

    def pages(self) -> int:
        return len(self.journal.paths())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path, Pair)
    host.write(BEFORE)
    return host


def test_configure_writes_once_and_undo_restores_the_bytes(host: Host) -> None:
    outcome = host.transaction().configure(options())

    assert [edit.path for edit in outcome.edits] == [EXTRA, MAIN]
    assert host.read(MAIN) == BEFORE + b"import extra\n"
    assert host.read(EXTRA) == b"handler nvidia=/usr/bin/nvidia\n"
    inodes = [host.path(name).stat().st_ino for name in (MAIN, EXTRA)]
    assert host.transaction().configure(options()).edits == ()
    assert [host.path(name).stat().st_ino for name in (MAIN, EXTRA)] == inodes

    back = host.transaction().undo(options())

    assert [edit.path for edit in back.edits] == [MAIN, EXTRA]
    assert host.read(MAIN) == BEFORE
    assert not host.path(EXTRA).parent.exists()
    assert host.pages() == 0


def test_several_configures_are_undone_as_one(host: Host) -> None:
    host.transaction().configure(options())
    host.transaction().configure(options("nvidia", "nvidia-cdi"))
    host.transaction().configure(options(default="nvidia"))
    assert b"default nvidia" in (host.read(MAIN) or b"")

    host.transaction().undo(options())

    assert host.read(MAIN) == BEFORE
    assert host.read(EXTRA) is None


@pytest.mark.parametrize("again", [False, True])
def test_later_changes_of_others_stay_and_ours_are_removed(host: Host, *, again: bool) -> None:
    host.transaction().configure(options())
    host.write(b"# others\n" + (host.read(MAIN) or b""))
    if again:
        host.transaction().configure(options(default="nvidia"))

    outcome = host.transaction().undo(options())

    assert host.read(MAIN) == b"# others\n" + BEFORE
    assert host.read(EXTRA) is None
    assert again or any("changed by others: only nvct's part" in note for note in outcome.notes)


@pytest.mark.parametrize(
    "earlier", [[], [options("nvidia", "nvidia-cdi")]], ids=["once", "after an earlier configure"]
)
def test_a_part_that_others_added_to_our_file_stays(
    host: Host, earlier: list[EngineOptions]
) -> None:
    for each in (*earlier, options("nvidia")):
        host.transaction().configure(each)
    host.write((host.read(EXTRA) or b"") + b"handler kata=/usr/bin/kata\n", EXTRA)

    host.transaction().undo(options())

    assert host.read(EXTRA) == b"handler kata=/usr/bin/kata\n"
    assert host.read(MAIN) == BEFORE + b"import extra\n"


def test_a_file_that_others_removed_stays_removed(host: Host) -> None:
    host.transaction().configure(options())
    host.path(MAIN).unlink()

    outcome = host.transaction().undo(options())

    assert host.read(MAIN) is None
    assert host.read(EXTRA) is None
    assert f"{MAIN} was removed by others: it stays removed" in outcome.notes


def test_undo_without_a_journal_changes_nothing(host: Host) -> None:
    outcome = host.transaction().undo(options())

    assert outcome.edits == ()
    assert outcome.notes == ("nothing to undo for pair",)
    assert host.read(MAIN) == BEFORE


def test_mode_and_owner_stay_and_a_link_stays_a_link(host: Host, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere.conf"
    real.write_bytes(BEFORE)
    real.chmod(0o640)
    host.path(MAIN).unlink()
    host.path(MAIN).symlink_to(real)

    host.transaction().configure(options())

    assert host.path(MAIN).is_symlink()
    assert real.read_bytes() == BEFORE + b"import extra\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert stat.S_IMODE(host.path(EXTRA).stat().st_mode) == 0o644
    host.transaction().undo(options())
    assert host.path(MAIN).is_symlink()
    assert real.read_bytes() == BEFORE


def test_a_link_that_leads_nowhere_stays_and_undo_takes_the_target(tmp_path: Path) -> None:
    host = Host(tmp_path, Pair)
    target = tmp_path / "srv/main.conf"
    target.parent.mkdir()
    link = host.path(MAIN)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)

    host.transaction().configure(options())

    assert link.is_symlink()
    assert target.is_file()
    host.transaction().undo(options())
    assert link.is_symlink()
    assert not target.exists()


def test_a_missing_main_file_is_made_and_removed_again(tmp_path: Path) -> None:
    host = Host(tmp_path, Pair)

    host.transaction().configure(options())
    assert host.read(MAIN) == b"import extra\n"
    host.transaction().undo(options())

    assert not host.path("/etc").exists()


def test_the_engine_checks_before_anything_is_written(host: Host) -> None:
    control = PairControl(refuses="pair refuses the new configuration: line 2")

    with pytest.raises(EngineError, match="line 2"):
        host.transaction(control).configure(options())

    assert host.read(MAIN) == BEFORE
    assert host.read(EXTRA) is None
    assert host.pages() == 0
    assert control.activated == []


@pytest.mark.parametrize("fails", [1, 2], ids=["at the new files", "at the former files, too"])
def test_an_engine_that_does_not_start_gets_its_former_files(host: Host, fails: int) -> None:
    control = PairControl(fails=fails)

    with pytest.raises(EngineError, match="line 1: no such thing") as caught:
        host.transaction(control).configure(options())

    assert fails == 2 or caught.value.hint == "the former files are back in place"
    assert control.activated == [(False, False), (False, True)]
    assert host.read(MAIN) == BEFORE
    assert not host.path(EXTRA).parent.exists()
    assert host.pages() == 0


def test_a_failed_undo_leaves_the_engine_configured(host: Host) -> None:
    host.transaction().configure(options())
    configured = host.read(MAIN), host.read(EXTRA)

    with pytest.raises(EngineError):
        host.transaction(PairControl(fails=1)).undo(options())

    assert (host.read(MAIN), host.read(EXTRA)) == configured
    host.transaction().undo(options())
    assert host.read(MAIN) == BEFORE


class Meddled(Pair):
    """A module during which another program writes the file."""

    @staticmethod
    def plan(options: EngineOptions, files: Files) -> Change:
        change = Pair.plan(options, files)
        Path(files.at(MAIN)).write_bytes(b"meanwhile\n")
        return change


def test_a_change_between_plan_and_write_is_not_lost(host: Host) -> None:
    host.module = Meddled

    with pytest.raises(EngineError, match="changed by another program just now") as caught:
        host.transaction().configure(options())

    assert caught.value.hint == "run the command again"
    assert host.read(MAIN) == b"meanwhile\n"
    assert host.read(EXTRA) is None


def test_a_file_that_two_engines_share_is_refused(host: Host) -> None:
    host.transaction().configure(options())
    other = "/etc/pair/other.conf"
    host.path(other).symlink_to(host.path(MAIN))
    host.write((host.read(MAIN) or b"").replace(b"import extra\n", b""))

    with pytest.raises(EngineError, match=r"other\.conf was changed for pair .*two engines share"):
        host.transaction().configure(options(config=other))


@pytest.mark.parametrize("name", [MAIN, EXTRA])
def test_a_folder_in_place_of_a_file_is_refused(host: Host, name: str) -> None:
    host.path(name).unlink(missing_ok=True)
    host.path(name).mkdir(parents=True)

    with pytest.raises(DocumentError, match="no regular file"):
        host.transaction().configure(options())

    assert host.pages() == 0


def test_a_file_in_place_of_a_folder_is_refused(host: Host) -> None:
    host.write(b"", "/etc/pair/conf.d")

    with pytest.raises(EngineError, match=r"conf\.d/extra\.conf cannot be written: Not a dir"):
        host.transaction().configure(options())

    assert host.read(MAIN) == BEFORE
    assert host.pages() == 0


class Failing(RecordingKernel):
    """The kernel of a host on which the n-th rename fails."""

    __slots__ = ("code", "left")

    def __init__(self, code: int, free_writes: int) -> None:
        super().__init__()
        self.code = code
        self.left = free_writes

    def rename(self, source: str, target: str, **folders: int | None) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.code, os.strerror(self.code), target)
        super().rename(source, target, **folders)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (1, "lsattr" if os.geteuid() == 0 else "run it as root"),
        (16, "it is a mount point of its own: mount its folder instead"),
        (28, "the file system is full"),
        (30, "the file system is read-only: name a file with nvct runtime configure --config"),
    ],
    ids=["immutable", "mounted", "full", "read-only"],
)
def test_a_failed_write_restores_everything(host: Host, code: int, hint: str, at: int) -> None:
    journal = Journal(str(host.root / "state"), Failing(code, at))

    with pytest.raises(EngineError, match="cannot be written") as caught:
        Transaction(Pair, Files(str(host.root)), journal).configure(options())

    assert hint in caught.value.hint
    assert host.read(MAIN) == BEFORE
    assert host.read(EXTRA) is None
    assert host.pages() == 0


class Stuck(Failing):
    """The same, and no later rename succeeds either."""

    __slots__ = ()

    def rename(self, source: str, target: str, **folders: int | None) -> None:
        self.left = max(self.left, 1) if self.left > 1 else 1
        super().rename(source, target, **folders)


def test_if_restoring_fails_too_both_errors_are_reported_and_the_next_run_restores(
    host: Host,
) -> None:
    host.transaction().configure(options())
    before = host.read(MAIN), host.read(EXTRA)
    journal = Journal(str(host.root / "state"), Stuck(28, 3))

    with pytest.raises(
        EngineError, match=r"No space left.*; and the change could not be reverted: "
    ) as caught:
        Transaction(Pair, Files(str(host.root)), journal).configure(
            options("nvidia", "nvidia-cdi", default="nvidia")
        )

    assert caught.value.hint.startswith(f"the former files are in {host.root}/state/pair-")
    assert host.read(EXTRA) != before[1]
    outcome = host.transaction().configure(options())
    assert (host.read(MAIN), host.read(EXTRA)) == before
    assert any("was interrupted" in note for note in outcome.notes)


def killed(host: Host, *, reloaded: bool) -> None:
    """Leave what a run leaves that is killed after its last file."""
    host.transaction().configure(options())
    path = host.journal.paths()[0]
    page = host.journal.load(path)
    assert page.done
    host.journal.save(path, Page(pending=replace(page.done, reloaded=reloaded)))


@pytest.mark.parametrize("reloaded", [True, False])
def test_an_engine_reloaded_by_an_interrupted_change_is_reloaded_again(
    host: Host, *, reloaded: bool
) -> None:
    killed(host, reloaded=reloaded)
    control = PairControl()

    outcome = host.transaction(control).undo(options())

    assert control.activated == ([(False, True)] if reloaded else [])
    assert host.read(MAIN) == BEFORE
    assert host.pages() == 0
    assert outcome.notes[0] == "an earlier change of pair was interrupted: it is reverted"
    assert [edit.path for edit in outcome.edits] == [MAIN, EXTRA]
    assert not any("nothing to undo" in note for note in outcome.notes)


def test_changes_of_others_after_an_interrupted_change_stay(host: Host) -> None:
    killed(host, reloaded=True)
    host.write(b"theirs\n")

    outcome = host.transaction(PairControl(fails=1)).undo(options())

    assert host.read(MAIN) == b"theirs\n"
    assert host.read(EXTRA) is None
    others = f"{MAIN} was changed by others and has nothing of nvct's: it stays"
    assert others in outcome.notes
    assert any("with the former files, too: pair does not start" in n for n in outcome.notes)


@pytest.mark.parametrize("command", ["configure", "undo"])
def test_after_an_interrupted_change_our_part_leaves_a_file_that_others_changed(
    host: Host, command: str
) -> None:
    killed(host, reloaded=False)
    host.write(b"# others\n" + (host.read(MAIN) or b""))

    if command == "configure":
        host.transaction().configure(options(default="nvidia"))
        assert b"default nvidia" in (host.read(MAIN) or b"")
    outcome = host.transaction().undo(options())

    assert host.read(MAIN) == b"# others\n" + BEFORE
    assert host.read(EXTRA) is None
    assert host.pages() == 0
    note = f"{MAIN} was changed by others: only nvct's part is removed"
    assert command == "configure" or note in outcome.notes


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_change_in_a_file_that_is_broken_since_is_not_forgotten(
    host: Host, *, is_finished: bool
) -> None:
    if is_finished:
        host.transaction().configure(options())
    else:
        killed(host, reloaded=False)
    written, extra = host.read(MAIN) or b"", host.read(EXTRA)
    host.write(written + b"broken\n")

    with pytest.raises(EngineConfigError, match=f"{MAIN} is broken") as caught:
        host.transaction().undo(options())

    assert caught.value.hint.endswith("; until then pair keeps what nvct changed")
    assert host.read(EXTRA) == extra
    host.write(written + b"mended\n")
    host.transaction().undo(options())
    assert host.read(MAIN) == BEFORE + b"mended\n"
    assert host.pages() == 0


@pytest.mark.parametrize("command", ["configure", "undo"])
def test_temporary_pages_of_killed_runs_go_with_the_next_change(host: Host, command: str) -> None:
    host.transaction().configure(options())
    left = host.write(b"half a page", "state/.nvct-0123456789abcdef")

    getattr(host.transaction(), command)(options())

    assert not left.exists()


def test_beside_other_paths_only_abandoned_temporary_files_go(tmp_path: Path) -> None:
    """Programs of ours write to /etc/cdi without the journal's lock."""
    old, young = (tmp_path / f".nvct-{digit * 16}" for digit in "01")
    old.symlink_to("/nowhere")
    young.write_bytes(b"being written")
    os.utime(old, (0, 0), follow_symlinks=False)
    path = tmp_path / "nvidia.yaml"
    file = PathState(mode=stat.S_IFREG | 0o644, uid=os.geteuid(), gid=os.getegid())
    changes = PathChanges(Journal(str(tmp_path / "state")), Files(), follow=False)

    changes.write(Entry(path=str(path), before=ABSENT, after=file))

    assert sorted(os.listdir(tmp_path)) == [young.name, "nvidia.yaml"]


DAMAGED = ["", "{", '{"format": 1, "done": 7}', '{"a":' * 100_000, "\udcff\udcfe", "[]"]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_journal_keeps_undo_from_guessing_and_nothing_else(
    host: Host, text: str
) -> None:
    host.transaction().configure(options())
    path = Path(host.journal.paths()[0])
    path.write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(DocumentError, match=r"the journal .* is damaged") as caught:
        host.transaction().undo(options())
    assert "--remove" in caught.value.hint
    outcome = host.transaction().configure(options("nvidia", "more"))

    assert b"handler more=" in (host.read(EXTRA) or b"")
    assert any("is damaged: " in note and f"{path}.damaged" in note for note in outcome.notes)
    assert Path(f"{path}.damaged").read_text("utf-8", "surrogateescape") == text
    host.transaction().undo(options())
    assert host.read(EXTRA) == b"handler nvidia=/usr/bin/nvidia\n"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    outcome = host.transaction().remove(options())
    assert any(f"{path}.damaged2" in note for note in outcome.notes)


def test_the_journal_of_a_later_version_stays_for_it(host: Host) -> None:
    host.transaction().configure(options())
    path = Path(host.journal.paths()[0])
    held = path.read_text().replace('"format": 2', '"format": 3')
    path.write_text(held)

    for act in ("configure", "undo", "remove"):
        with pytest.raises(
            DocumentError, match="was written by a later version of nvct"
        ) as caught:
            getattr(host.transaction(), act)(options("nvidia", "more"))
        assert "undo with that version" in caught.value.hint
    assert [Path(name).read_text() for name in host.journal.paths()] == [held]
    assert list(path.parent.glob("*.damaged*")) == []


def test_a_damaged_journal_of_another_engine_is_not_in_the_way(host: Host) -> None:
    host.transaction().configure(options())
    Path(host.journal.paths()[0]).write_text("{", encoding="utf-8")
    other = "/etc/pair/other.conf"
    host.write(BEFORE, other)

    host.transaction().configure(options("more", config=other))

    assert host.read(other) == BEFORE + b"import extra\n"


@pytest.mark.parametrize("changed", [False, True])
def test_undo_goes_on_where_the_engine_refused_the_original_too(
    host: Host, *, changed: bool
) -> None:
    host.transaction().configure(options())
    if changed:
        host.write(b"# others\n" + (host.read(MAIN) or b""))
    control = PairControl(refuses="pair refuses the new configuration: runc is not there")

    outcome = host.transaction(control).undo(options())

    assert host.read(MAIN) == (b"# others\n" if changed else b"") + BEFORE
    assert control.activated == []
    assert outcome.notes[0] == (
        "pair refuses the new configuration: runc is not there; "
        "pair refuses its files from before nvct, too, so it is not reloaded"
    )


class Picky(PairControl):
    """Refuses a file with a word of others."""

    def check(self, edits: Sequence[FileEdit]) -> list[str]:
        if any(b"theirs" in (edit.after or b"") for edit in edits):
            raise EngineError("pair refuses the new configuration: theirs")
        return super().check(edits)


def test_undo_stops_where_the_engine_took_the_original(host: Host) -> None:
    host.transaction().configure(options())
    current = b"theirs\n" + (host.read(MAIN) or b"")
    host.write(current)

    with pytest.raises(EngineError, match="theirs"):
        host.transaction(Picky()).undo(options())

    assert host.read(MAIN) == current
    assert host.pages() == 1


def test_a_journal_that_others_may_write_to_is_refused(host: Host) -> None:
    host.transaction().configure(options())
    Path(host.journal.paths()[0]).chmod(0o666)

    with pytest.raises(DocumentError, match="can be written to by others"):
        host.transaction().undo(options())

    (host.root / "state").chmod(0o777)
    with pytest.raises(EngineError, match="can be written to by others"):
        host.transaction().undo(options())


def test_a_state_folder_that_cannot_be_created_is_reported(host: Host) -> None:
    host.write(b"", "/state")

    with pytest.raises(EngineError, match="state cannot be written: File exists"):
        host.transaction().configure(options())


def test_a_second_run_waits_no_longer_than_it_says(host: Host) -> None:
    second = Journal(host.journal.folder, timeout_s=0.05)

    with host.journal.lock(), pytest.raises(HostError, match="locked by another process"):
        Transaction(Pair, Files(str(host.root)), second).configure(options())
