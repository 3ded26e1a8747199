# SPDX-License-Identifier: Apache-2.0
"""What --fix changes is changed completely or not at all, and is taken back to the byte."""

import errno
import os
import shutil
import signal
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nvct.doctor import fix
from nvct.doctor.fix import Step, Transaction
from nvct.engine.journal import Journal, Page
from nvct.engine.model import text_of
from nvct.engine.writing import ABSENT, PathState, put, state_of
from nvct.errors import DocumentError, HostError
from nvct.host.roots import Roots
from nvct.linux.kernel import KERNEL, Kernel
from tests.support.forked import run_forked
from tests.support.memory import in_memory
from tests.support.recording_kernel import RecordingKernel

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")

NULL, ZERO = os.makedev(1, 3), os.makedev(1, 5)
BOOT = "proc/sys/kernel/random/boot_id"


def node(device: int, mode: int = 0o666) -> PathState:
    return PathState(mode=stat.S_IFCHR | mode, rdev=device)


def file(text: bytes, mode: int = 0o644) -> PathState:
    return PathState(mode=stat.S_IFREG | mode, text=text_of(text))


def link(target: str) -> PathState:
    return PathState(mode=stat.S_IFLNK | 0o777, text=target)


BEFORE = {
    "dev/made": ABSENT,
    "dev/wrong": node(ZERO, 0o600),
    "dev/plain": file(b"text", 0o600),
    "dev/char/1:3": ABSENT,
    "cdi/new/nvidia.yaml": ABSENT,
    "cdi/old.yaml": file(b"old", 0o600),
    "cdi/gone.yaml": file(b"gone"),
}
AFTER = {
    "dev/made": node(NULL),
    "dev/wrong": node(NULL),
    "dev/plain": node(NULL),
    "dev/char/1:3": link("/dev/made"),
    "cdi/new/nvidia.yaml": file(b"new"),
    "cdi/old.yaml": file(b"newer"),
    "cdi/gone.yaml": ABSENT,
}
FIRST = tuple(name for name in AFTER if name.startswith("dev/"))


class Host:
    """A tree with what --fix changes, and its journal."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        shutil.rmtree(root, ignore_errors=True)
        for folder in ("dev", "cdi", "proc/sys/kernel/random"):
            (root / folder).mkdir(parents=True)
        (root / BOOT).write_text("one\n")
        for name, state in BEFORE.items():
            if state != ABSENT:
                put(f"{root}/{name}", state, KERNEL)

    def transaction(self, kernel: Kernel = KERNEL) -> Transaction:
        places = {name: f"{self.root}/{name}" for name in ("proc", "sys", "etc", "run")}
        roots = Roots(driver_root=str(self.root), dev_root=str(self.root), **places)
        return Transaction(f"{self.root}/state", roots, self.said.append, kernel)

    def fix(self, kernel: Kernel = KERNEL, *, then_fails: bool = False) -> bool:
        names = [FIRST, tuple(name for name in AFTER if name not in FIRST)]
        steps = [
            Step(
                name=f"step {number}",
                plan=lambda chosen=chosen: {  # type: ignore[misc]
                    f"{self.root}/{name}": AFTER[name] for name in chosen
                },
            )
            for number, chosen in enumerate(names, 1)
        ]
        if then_fails:
            steps.append(Step(name="step 3", plan=self._fails))
        return self.transaction(kernel).carry_out(steps)

    @staticmethod
    def _fails() -> dict[str, PathState]:
        raise HostError("it ended with exit status 1", hint="look at it")

    def states(self) -> dict[str, PathState]:
        return {name: state_of(f"{self.root}/{name}") for name in AFTER}

    @property
    def journal(self) -> Page:
        return Journal(f"{self.root}/state").load(f"{self.root}/state/{fix.NAME}")

    def is_as_before(self) -> bool:
        made = [self.root / "dev/char", self.root / "cdi/new", *self.root.rglob(".nvct-*")]
        return self.states() == BEFORE and not any(os.path.lexists(path) for path in made)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with in_memory(tmp_path) as folder:
        yield Host(folder / "host")


def test_all_is_changed_and_undo_puts_all_back(host: Host) -> None:
    assert host.fix()
    assert host.states() == AFTER

    assert host.transaction().undo()

    assert host.is_as_before()
    assert host.journal == Page()
    assert host.transaction().undo()
    assert host.said[-1].startswith("nothing to undo")


def test_the_second_fix_changes_nothing_and_the_first_can_be_undone(host: Host) -> None:
    host.fix()
    journal = host.journal
    inodes = [os.lstat(host.root / name).st_ino for name in AFTER if AFTER[name] != ABSENT]

    assert host.fix()

    assert inodes == [os.lstat(host.root / n).st_ino for n in AFTER if AFTER[n] != ABSENT]
    assert host.journal == journal


def test_a_step_that_fails_takes_back_those_before(host: Host) -> None:
    assert not host.fix(then_fails=True)

    assert host.is_as_before()
    assert "step 3 failed: it ended with exit status 1; look at it" in host.said
    assert "undoing the changes of this run" in host.said
    assert host.journal == Page()


class Refusing(Kernel):
    """Refuses to make a folder."""

    __slots__ = ()

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        del mode, dir_fd
        raise OSError(errno.EROFS, "Read-only file system", path)


def test_a_path_that_cannot_be_written_takes_back_those_before(host: Host) -> None:
    assert not host.fix(Refusing())

    assert host.is_as_before()
    folder = f"{host.root}/dev/char"
    assert f"step 1 failed: {folder} cannot be written: Read-only file system" in host.said


def test_a_fix_that_failed_does_not_hide_the_one_before(host: Host) -> None:
    host.fix()
    journal = host.journal

    assert not host.fix(then_fails=True)

    assert host.journal == journal
    assert host.transaction().undo()
    assert host.is_as_before()


def test_what_others_changed_since_is_named_and_left(host: Host) -> None:
    host.fix()
    (host.root / "cdi/old.yaml").write_bytes(b"an admin's")
    (host.root / "dev/made").chmod(0o600)
    (host.root / "dev/char/1:3").unlink()
    (host.root / "dev/char/1:3").symlink_to("/dev/else")

    assert host.transaction().undo()

    changed = {
        "cdi/old.yaml": file(b"an admin's"),
        "dev/made": node(NULL, 0o600),
        "dev/char/1:3": link("/dev/else"),
    }
    assert host.states() == {**BEFORE, **changed}
    for name in changed:
        assert (
            f"  {host.root}/{name}: left as it is: another program changed it since" in host.said
        )


def test_a_node_that_somebody_else_made_since_stays(host: Host) -> None:
    host.fix()
    os.unlink(host.root / "dev/made")
    put(f"{host.root}/dev/made", AFTER["dev/made"], KERNEL)

    host.transaction().undo()

    assert host.states() == {**BEFORE, "dev/made": AFTER["dev/made"]}


def test_nodes_and_links_of_another_boot_are_not_of_this_fix(host: Host) -> None:
    host.fix()
    (host.root / BOOT).write_text("two\n")

    host.transaction().undo()

    of_dev = {name: AFTER[name] for name in FIRST}
    assert host.states() == {**BEFORE, **of_dev}


def test_a_link_on_a_disk_is_taken_back_after_a_boot(host: Host) -> None:
    path = host.root / "cdi/link"
    step = Step(name="a link", plan=lambda: {str(path): link("/usr/lib/unit")})
    host.transaction().carry_out([step])
    (host.root / BOOT).write_text("two\n")

    assert host.transaction().undo()

    assert not path.is_symlink()


def test_runs_that_accumulate_are_taken_back_together(host: Host) -> None:
    old, new = f"{host.root}/cdi/old.yaml", f"{host.root}/cdi/new.yaml"
    transaction = Transaction(f"{host.root}/state", Roots(), host.said.append, accumulates=True)
    for states in ({old: file(b"one")}, {old: file(b"two"), new: file(b"new")}, {}):
        transaction.carry_out([Step(name="a step", plan=lambda states=states: states)])  # type: ignore[misc]

    assert transaction.undo()

    assert host.is_as_before()
    assert not os.path.exists(new)


def test_what_others_changed_can_be_taken_back_in_part(host: Host) -> None:
    old = host.root / "cdi/old.yaml"
    transaction = Transaction(
        f"{host.root}/state", Roots(), host.said.append,
        rest=lambda entry, current: current.with_content(entry.before.data + current.data),
    )  # fmt: skip
    transaction.carry_out([Step(name="a step", plan=lambda: {str(old): file(b"ours")})])
    old.write_bytes(b" and an admin's")

    assert transaction.undo()

    assert old.read_bytes() == b"old and an admin's"
    assert host.journal == Page()


def test_a_node_that_is_open_stays_until_it_is_closed(host: Host) -> None:
    host.fix()
    process = host.root / "proc/4242"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("python3\n")
    (process / "fd/3").symlink_to("/dev/null")

    assert not host.transaction().undo()

    kept = ("dev/made", "dev/wrong", "dev/plain")
    assert host.states() == {**BEFORE, **{name: AFTER[name] for name in kept}}
    path = f"{host.root}/dev/made"
    assert f"  {path}: left as it is: process 4242 (python3) holds {path}" in host.said

    shutil.rmtree(process)
    assert host.transaction().undo()
    assert host.is_as_before()


def test_a_dry_run_of_undo_changes_nothing(host: Host) -> None:
    host.fix()
    journal = host.journal

    assert host.transaction().undo(dry_run=True)

    assert host.states() == AFTER
    assert host.journal == journal
    assert f"  {host.root}/dev/made: would be removed" in host.said


def test_a_damaged_journal_is_refused_before_anything_changes(host: Host) -> None:
    host.fix()
    path = host.root / "state" / fix.NAME
    for text in ("{", "{}", path.read_text().replace('"mode"', '"mood"'), "[" * 100_000):
        path.write_text(text)
        with pytest.raises(DocumentError, match="is damaged"):
            host.transaction().undo()
    path.chmod(0o666)
    with pytest.raises(DocumentError, match="can be written to by others"):
        host.fix()
    assert host.states() == AFTER


def ready(host: Host, act: str) -> None:
    host.__init__(host.root)  # type: ignore[misc]  # the host of the start again
    if act == "undo":
        host.fix()


def run(host: Host, act: str, kernel: Kernel) -> None:
    if act == "undo":
        host.transaction(kernel).undo()
    else:
        host.fix(kernel, then_fails=True)


def places(host: Host, act: str) -> Iterator[tuple[str, str, int]]:
    """Yield each call of the kernel that changes something, as a place to be killed at."""
    kernel = RecordingKernel()
    ready(host, act)
    run(host, act, kernel)
    seen: dict[str, int] = {}
    for name in kernel.names():
        seen[name] = seen.get(name, 0) + 1
        if name in CHANGING:
            yield name, "after", seen[name]


CHANGING = ("rename", "unlink", "mkdir", "rmdir", "mknod", "symlink")


@pytest.mark.parametrize("act", ["fix that fails", "undo"])
def test_after_a_kill_the_next_run_goes_on(host: Host, act: str) -> None:
    seen = set()
    for number, place in enumerate(list(places(host, act))):
        ready(host, act)
        kernel = RecordingKernel(kill_at=place)
        status = run_forked(lambda kernel=kernel: run(host, act, kernel))  # type: ignore[misc]
        assert os.WTERMSIG(status) == signal.SIGKILL, place
        states = host.states()
        assert all(state in (BEFORE[name], AFTER[name]) for name, state in states.items()), place
        seen.add(tuple(states[name] == AFTER[name] for name in AFTER))
        for path in host.root.rglob(".nvct-*"):
            path.unlink()  # the one that a killed run may leave
        if number % 2:
            host.fix()
            assert host.states() == AFTER, place
        host.transaction().undo()
        assert host.is_as_before(), place
        assert host.journal == Page(), place
    assert len(seen) >= len(AFTER)


def test_others_are_told_before_the_journal_forgets_what_changed(host: Host) -> None:
    """After a kill in between, the next run tells them again."""
    told: list[tuple[bool, set[str]]] = []

    def tell(paths: Sequence[str]) -> None:
        told.append((host.journal.pending is not None, {os.path.basename(path) for path in paths}))

    transaction = host.transaction()
    transaction.tell = tell
    states = {f"{host.root}/cdi/old.yaml": AFTER["cdi/old.yaml"]}
    assert transaction.carry_out([Step(name="step", plan=lambda: states)])
    assert transaction.undo()

    assert told == [(True, {"old.yaml"})] * 2
