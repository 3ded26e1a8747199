# SPDX-License-Identifier: Apache-2.0
import os
import stat
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from nvct.container.plan import fingerprints
from nvct.oci import jsontext

OLD = 1_000_000_000 * 10**9


def aged(path: Path, ns: int = OLD) -> Path:
    os.utime(path, ns=(ns, ns))
    return path


def holds(fact: Any) -> bool:
    """Report whether a fingerprint matches after a round trip through JSON."""
    parsed = jsontext.parse(jsontext.dumps(fact), "x")
    return fingerprints.broken([parsed]) is None  # type: ignore[list-item]  # as read from a file


def test_stat_breaks_on_each_of_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("12345")
    fact = fingerprints.take("stat", str(aged(path)))
    s = path.stat()
    assert fact == ["stat", str(path), [s.st_dev, s.st_ino, 5, OLD, os.geteuid()]]
    assert holds(fact)
    aged(path, OLD + 1)
    assert not holds(fact)  # by a nanosecond
    path.write_text("123456")
    aged(path)
    assert not holds(fact)  # size
    other = tmp_path / "g"
    other.write_text("12345")
    aged(other).rename(path)
    assert not holds(fact)  # inode
    path.unlink()
    assert not holds(fact)


def test_stat_follows_links_and_ignores_their_number(tmp_path: Path) -> None:
    real, path = tmp_path / "real", tmp_path / "f"
    real.write_text("1")
    path.symlink_to(real)
    fact = fingerprints.take("stat", str(path))
    os.link(real, tmp_path / "hard")  # moves ctime only
    real.chmod(0o600)
    assert holds(fact)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert not holds(fact)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_stat_breaks_on_another_owner(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("1")
    fact = fingerprints.take("stat", str(path))
    os.chown(path, 12345, -1)
    assert not holds(fact)


def test_absent_breaks_when_something_appears(tmp_path: Path) -> None:
    path = tmp_path / "f"
    fact = fingerprints.take_file(str(path), OLD)
    assert fact == ["absent", str(path), None]
    assert holds(fact)
    path.symlink_to("nowhere")
    assert holds(fact)  # a dangling link leads nowhere
    path.unlink()
    path.touch()
    assert not holds(fact)
    assert holds(fingerprints.take_file(f"{path}/below", OLD))


def test_text_breaks_on_content_and_not_on_times(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_bytes(b"NVRM version: \xff 580\n")
    fact = fingerprints.take("text", str(path))
    aged(path)
    assert holds(fact)
    path.write_bytes(b"NVRM version: \xff 581\n")
    assert not holds(fact)
    path.unlink()
    assert not holds(fact)
    assert holds(fingerprints.take("text", str(path)))


def test_text_reads_procfs_and_no_more_than_its_limit(tmp_path: Path) -> None:
    assert str(fingerprints.observe("text", "/proc/self/comm")).strip()
    path = tmp_path / "long"
    path.write_bytes(b"x" * (fingerprints.TEXT_LIMIT + 10))
    assert fingerprints.observe("text", str(path)) == "x" * fingerprints.TEXT_LIMIT


def test_list_breaks_on_names_and_not_on_content(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    fact = fingerprints.take("list", str(folder))
    assert fact[2] == []
    folder.mkdir()
    assert holds(fact)
    for name in ("b", "a"):
        (folder / name).touch()
    assert not holds(fact)
    fact = fingerprints.take("list", str(folder))
    assert fact == ["list", str(folder), ["a", "b"]]
    (folder / "a").write_text("x")
    assert holds(fact)
    (folder / "c").touch()
    assert not holds(fact)


def test_prefix_breaks_on_names_with_that_prefix_only(tmp_path: Path) -> None:
    (tmp_path / "fs0").touch()
    fact = fingerprints.take("prefix", f"{tmp_path}/fs")
    assert fact[2] == ["fs0"]

    (tmp_path / "other").touch()
    assert holds(fact)
    (tmp_path / "fs1").touch()
    assert not holds(fact)
    assert fingerprints.take("prefix", f"{tmp_path}/nowhere/fs")[2] == []


def test_node_reads_character_nodes_only_and_follows_no_link(tmp_path: Path) -> None:
    null = os.lstat("/dev/null")
    permissions = null.st_mode & 0o7777
    assert fingerprints.take("node", "/dev/null")[2] == [
        null.st_rdev,
        permissions,
        null.st_uid,
        null.st_gid,
    ]
    assert holds(fingerprints.take("node", "/dev/null"))
    (tmp_path / "null").symlink_to("/dev/null")
    for path in (tmp_path / "null", tmp_path, tmp_path / "gone"):
        assert fingerprints.observe("node", str(path)) is None
    assert not holds(
        ["node", str(tmp_path / "null"), [null.st_rdev, permissions, null.st_uid, null.st_gid]]
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_node_breaks_on_what_containers_get_of_it(tmp_path: Path) -> None:
    path = tmp_path / "node"
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))  # of overlayfs, which nobody is refused
    path.chmod(0o666)
    fact = fingerprints.take("node", str(path))

    path.chmod(0o660)
    assert not holds(fact)
    path.chmod(0o666)
    assert holds(fact)
    os.chown(path, 0, 44)
    assert not holds(fact)
    os.chown(path, 7, 0)
    assert not holds(fact)


def test_hash_breaks_on_content_only(tmp_path: Path) -> None:
    path = tmp_path / "f"
    data = os.urandom(3 << 20)
    path.write_bytes(data)
    fact = fingerprints.take("hash", str(path))
    first = blake2b(data[: fingerprints.HASH_LIMIT], digest_size=16).hexdigest()
    assert fact[2] == f"{len(data)} {first}"
    aged(path)
    assert holds(fact)
    with path.open("r+b") as file:
        file.seek(fingerprints.HASH_LIMIT - 1)
        file.write(bytes([data[fingerprints.HASH_LIMIT - 1] ^ 1]))
    assert not holds(fact)


@pytest.mark.parametrize(
    ("age", "kind"),
    [
        (fingerprints.YOUNG_NS, "stat"),
        (fingerprints.YOUNG_NS - 1, "hash"),
        (0, "hash"),
        (-(10**18), "hash"),
    ],
)
def test_a_file_is_young_for_two_seconds_and_if_its_time_is_in_the_future(
    tmp_path: Path, age: int, kind: str
) -> None:
    path = tmp_path / "f"
    path.touch()
    assert fingerprints.take_file(str(aged(path)), OLD + age)[0] == kind


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert fingerprints.observe("text", str(tmp_path / "fifo")) == ""
    assert fingerprints.observe("hash", str(tmp_path / "fifo"))


def test_the_first_broken_fingerprint_is_returned(tmp_path: Path) -> None:
    good = fingerprints.take("list", str(tmp_path))
    bad, worse = ["text", "/gone", "x"], ["absent", str(tmp_path), None]
    assert fingerprints.broken([]) is None
    assert fingerprints.broken([good, good]) is None
    assert fingerprints.broken([good, bad, worse]) == bad  # type: ignore[list-item]  # plain lists


@pytest.mark.parametrize(
    "fact",
    [
        None, 5, "stat", [], {}, ["stat"], ["stat", "/"], ["stat", "/", None, 1], [None, "/", None],
        ["stat", None, None], ["stat", 5, None], [["stat"], "/", None], ["", "/", None],
        ["unheard-of", "/", None], ["absent", "/\0", None], ["stat", "/\ud800", None],
        ["list", "\0", []], {"stat": 1, "/": 2, "x": 3},
    ],
)  # fmt: skip
def test_a_malformed_fingerprint_never_matches(fact: Any) -> None:
    assert fingerprints.broken([fact])  # and is no empty list, which would read as "all hold"


def test_an_unknown_kind_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="unheard-of"):
        fingerprints.take("unheard-of", "/")


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_hash_that_matches_becomes_a_stat_when_its_file_is_old_enough(
    tmp_path: Path, *, is_changed: bool
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1")
    now = path.stat().st_mtime_ns
    recorded = [fingerprints.take_file(str(path), now)]
    assert recorded[0][0] == "hash"
    if is_changed:
        path.write_bytes(b"2")
        os.utime(path, ns=(now, now))

    assert not fingerprints.settle(recorded, now)
    assert fingerprints.settle(recorded, now + 3 * fingerprints.YOUNG_NS) is not is_changed

    assert recorded[0][0] == ("hash" if is_changed else "stat")
    assert (fingerprints.broken(recorded) is None) is not is_changed
    assert not fingerprints.settle(recorded, now + 3 * fingerprints.YOUNG_NS)
