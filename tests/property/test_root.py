# SPDX-License-Identifier: Apache-2.0
"""No path leaves its root, with any tree and during any race."""

import contextlib
import os
import shutil
import signal
import struct
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nvct.errors import UnsafePathError
from nvct.linux import syscall
from nvct.linux.root import Root
from tests.support.descriptors import none_left_open

INSIDE, OUTSIDE = b"inside", b"outside"
OPENAT2 = 437  # linux/openat2.h: flags, mode, and RESOLVE_IN_ROOT of `resolve`
IN_ROOT = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, 0x10)

names = st.sampled_from(["a", "b", "c", "..", ".", ""])
paths = st.lists(names, max_size=6).map("/".join)
targets = st.one_of(
    paths,
    paths.map(lambda path: "/" + path),
    paths.map(lambda path: "../../../" + path),
    st.sampled_from(["{host}", "{host}/a", "{host}/../host/a", "/proc/self/cwd/a"]),
)
entries = st.tuples(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join),
    st.one_of(st.just("file"), st.just("directory"), targets.map(lambda text: "link " + text)),
)


def build(base: Path, tree: list[tuple[str, str]]) -> tuple[Path, Path]:
    """Make `root`, as the attacker wants it, and `host` with files of the same names beside it."""
    root, host = base / "root", base / "host"
    for name in ("a", "b", "c"):
        (host / name).mkdir(parents=True)
        (host / name / "a").write_bytes(OUTSIDE)
        (base / name).write_bytes(OUTSIDE)
    root.mkdir()
    for path, kind in tree:
        target = root / path
        if not Path(os.path.realpath(target.parent)).is_relative_to(root):
            continue  # the attacker has no other hands than the container's
        try:
            if kind == "file":
                with target.open("xb") as file:
                    file.write(INSIDE)
            elif kind == "directory":
                target.mkdir()
            else:
                target.symlink_to(kind[5:].format(host=host))
        except (OSError, ValueError):
            continue  # no such parent, already there: the tree has one entry less
    return root, host


def outside(base: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of everything that is not in the root."""
    status = {}
    for folder, _, files in os.walk(base):
        if Path(folder) == base / "root" or base / "root" in Path(folder).parents:
            continue
        status[folder] = (os.lstat(folder).st_mode, b"")
        for name in files:
            path = Path(folder, name)
            status[str(path)] = (os.lstat(path).st_mode, path.read_bytes())
    return status


def bases() -> Iterator[Path]:
    base = Path(os.path.realpath(tempfile.mkdtemp(prefix="nvct-root-")))
    try:
        yield base
    finally:
        shutil.rmtree(base)


def exercise(root: Root, path: str) -> bytes | None:
    """Call every method; ignore refusals."""
    data = None
    for step in (
        lambda: root.write_file(path, INSIDE),
        lambda: root.symlink("/" + path, path + "/link"),
        lambda: os.close(root.dir_fd(path, create=True, mode=0o711)),
        lambda: root.chmod(path, 0o711),
        lambda: root.listdir(path),
        lambda: root.unlink(path),
    ):
        try:
            data = root.read_file(path) or data
            assert data in (None, INSIDE)
        except (UnsafePathError, OSError):
            pass
        try:
            step()
        except (UnsafePathError, OSError):
            continue
    return data


@given(tree=st.lists(entries, max_size=12), paths=st.lists(targets, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_no_path_leaves_its_root(tree: list[tuple[str, str]], paths: list[str]) -> None:
    for base in bases():
        folder, host = build(base, tree)
        before = outside(base)
        with none_left_open(), Root.open(str(folder)) as root:
            for path in paths:
                exercise(root, path.format(host=host))
        assert outside(base) == before


def by_the_kernel(root_fd: int, path: str) -> tuple[int, int] | None:
    """Resolve as openat2 does, which is the definition of what `Root` should say."""
    while True:
        try:
            fd = syscall.syscall(OPENAT2, root_fd, os.fsencode(path or "."), IN_ROOT, len(IN_ROOT))
            break
        except BlockingIOError:  # openat2(2), EAGAIN: something else mounts or renames
            continue
        except OSError:
            return None
    status = os.fstat(fd)
    os.close(fd)
    return status.st_dev, status.st_ino


@given(tree=st.lists(entries, max_size=12), paths=st.lists(targets, min_size=1, max_size=8))
@settings(max_examples=120, deadline=None)
def test_the_walk_ends_where_the_kernels_own_would(
    tree: list[tuple[str, str]], paths: list[str]
) -> None:
    for base in bases():
        folder, host = build(base, tree)
        with Root.open(str(folder)) as root:
            for path in (p.format(host=host) for p in paths):
                try:
                    status = root.stat(path)
                except UnsafePathError:  # a loop
                    status = None
                identity = None if status is None else (status.st_dev, status.st_ino)
                assert identity == by_the_kernel(root.fd, path), path
                canonical = root.resolve(path) if status else None
                if canonical is not None:
                    assert by_the_kernel(root.fd, canonical) == identity
                    assert root.resolve(canonical) == canonical


def swap_for_ever(base: Path) -> None:
    """Make `race` in the root a directory, a link out of it, and nothing, as fast as can be."""
    root, turn = base / "root", 0
    os.symlink(base / "host", root / "out")
    os.symlink("../../host", root / "up")
    while True:
        turn += 1
        other = root / ("out" if turn % 2 else "up")
        try:
            os.rename(root / "race", root / "aside")
            os.rename(other, root / "race")
            os.rename(root / "race", other)
            os.rename(root / "aside", root / "race")
        except OSError:  # in the gap, the other side has made a folder of that name
            put_back(root, other)


def put_back(root: Path, other: Path) -> None:
    """Move `race` and the link that replaces it back to their paths."""
    race, aside = root / "race", root / "aside"
    if not aside.exists():
        return
    if race.is_symlink():
        race.rename(other)
    elif race.exists():
        shutil.rmtree(race, ignore_errors=True)
    with contextlib.suppress(OSError):
        aside.rename(race)


def test_no_race_leads_out_of_the_root(tmp_path: Path) -> None:
    root, host = tmp_path / "root", tmp_path / "host"
    (root / "race").mkdir(parents=True)
    (root / "race/a").write_bytes(INSIDE)
    host.mkdir()
    (host / "a").write_bytes(OUTSIDE)
    (host / "a").chmod(0o640)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses no thread's locks
        pid = os.fork()
    if pid == 0:
        try:
            swap_for_ever(tmp_path)
        finally:
            os._exit(1)
    outcomes = set()
    try:
        end = time.monotonic() + 1.0
        last = end + 30.0  # on a busy machine one of the two may not run for a while
        with Root.open(str(root)) as opened:
            while (now := time.monotonic()) < end or (INSIDE not in outcomes and now < last):
                outcomes.add(race_once(opened))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert INSIDE in outcomes
    assert OUTSIDE not in outcomes
    assert os.listdir(host) == ["a"]
    assert (host / "a").read_bytes() == OUTSIDE
    assert (host / "a").stat().st_mode & 0o777 == 0o640


def race_once(root: Root) -> bytes | None:
    data = None
    try:
        data = root.read_file("/race/a")
        root.write_file("/race/b", INSIDE)
        root.symlink("x", "/race/c")
        root.chmod("/race/a", 0o600)
        root.unlink("/race/b")
    except (UnsafePathError, OSError):
        pass
    return data
