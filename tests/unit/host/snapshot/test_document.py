# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.host.snapshot.document: redaction, saving, and loading untrusted data."""

import gzip
import json
import os
import re
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.errors import DocumentError, HostError
from nvct.host.snapshot import document, redaction
from nvct.host.snapshot.document import Snapshot
from tests.support.host_tree import LIB, VERSION, FakeNvml, nvml_gpu
from tests.unit.host.snapshot.conftest import everything, host, recorded


def test_uuids_are_replaced_by_the_same_ones_everywhere(tmp_path: Path) -> None:
    tree = host(tmp_path).gpu(1)
    gpus = (nvml_gpu(0, instances=((1, 0),)), nvml_gpu(1))
    raw = recorded(tree, FakeNvml(gpus=gpus))
    real = set(redaction.UUID.findall(everything(raw)))

    clean = document.redacted(raw)

    text = everything(clean)
    assert len(real) == 4  # two GPUs, a MIG device, the boot
    assert not any(uuid in text for uuid in real)
    paths = [f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information" for bus in ("18", "2a")]
    shown = [re.findall(r"GPU-[0-9a-f-]{36}", clean.texts[path])[0] for path in paths]
    assert shown == [gpu["uuid"] for gpu in clean.nvml["report"]["gpus"]]
    assert len(set(shown)) == 2
    assert clean.nvml["report"]["gpus"][0]["mig"][0]["uuid"].startswith("MIG-0000000")


def test_uuids_can_be_kept(tmp_path: Path) -> None:
    raw = recorded(host(tmp_path))

    assert document.redacted(raw, keep_uuids=True).texts == raw.texts | {
        document.VERSION: raw.texts[document.VERSION].replace("dvs-builder@host", "builder@host")
    }


def test_the_builder_and_build_host_of_the_module_are_removed(tmp_path: Path) -> None:
    tree = host(tmp_path)
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
    tree.write("proc/driver/nvidia/version", f"{line}  (root@secret.lan)\nGCC on secret.lan\n")

    clean = document.redacted(recorded(tree), hostname="secret.lan")

    assert clean.texts["proc/driver/nvidia/version"] == f"{line}  (builder@host)\nGCC on host\n"


def test_the_same_host_gives_the_same_bytes(tmp_path: Path) -> None:
    tree = host(tmp_path)

    assert document.packed(recorded(tree)) == document.packed(recorded(tree))


@pytest.mark.parametrize("name", ["snap", "snap.tar.gz", "snap.tgz"])
def test_a_saved_snapshot_is_loaded_unchanged(tmp_path: Path, name: str) -> None:
    redacted_snapshot = document.redacted(recorded(host(tmp_path), FakeNvml(gpus=(nvml_gpu(0),))))

    document.save(redacted_snapshot, str(tmp_path / name))

    assert document.load(str(tmp_path / name)) == redacted_snapshot


def test_an_archive_is_written_through_a_link_and_an_existing_folder_not_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "link.tgz").symlink_to("real.tgz")
    (tmp_path / "snap").mkdir()
    document.save(Snapshot(), str(tmp_path / "link.tgz"))
    assert (tmp_path / "real.tgz").read_bytes() == document.packed(Snapshot())
    assert (tmp_path / "link.tgz").is_symlink()
    with pytest.raises(HostError, match=r"cannot write a snapshot to .*/snap: File exists"):
        document.save(Snapshot(), str(tmp_path / "snap"))


def test_a_folder_packed_by_tar_is_loaded(tmp_path: Path) -> None:
    redacted_snapshot = document.redacted(recorded(host(tmp_path)))
    document.save(redacted_snapshot, str(tmp_path / "snap"))
    with tarfile.open(tmp_path / "by-hand.tar", "w") as archive:
        archive.add(tmp_path / "snap", arcname="./some/snap")

    assert document.load(str(tmp_path / "by-hand.tar")) == redacted_snapshot


def saved(tmp_path: Path, change: Callable[[dict[str, object]], object]) -> str:
    """Return the path of a snapshot with a changed index."""
    folder = tmp_path / "changed"
    document.save(document.redacted(recorded(host(tmp_path))), str(folder))
    index = json.loads((folder / document.INDEX).read_text())
    change(index)
    (folder / document.INDEX).write_text(json.dumps(index))
    return str(folder)


@pytest.mark.parametrize(
    ("table", "path", "value", "message"),
    [
        ("links", "proc/driver/nvidia/x", "/etc/shadow", "a link that leads out of it"),
        ("links", "sys/x", "../../../etc", "a link that leads out of it"),
        ("links", "sys/x", "../driver/y", "a link that leads out of it"),
        ("files", "../x", [420, 1], "outside its folders: '../x'"),
        ("files", "/etc/x", [420, 1], "outside its folders"),
        ("files", "home/x", [420, 1], "outside its folders"),
        ("files", "driver/a/../b", [420, 1], "outside its folders"),
        ("files", "driver", [420, 1], "outside its folders"),
        ("files", f"driver/{LIB}/libcuda.so.1/x", [420, 1], "below one of its links"),
        ("files", "driver/x", 5, None),
        ("nodes", "dev/nvidia9", ["a"], None),
        ("elf", "driver/x", [1, 2, "x86_64", 7, []], None),
        ("cache", 0, ["a"], None),
    ],
)
def test_a_hostile_snapshot_is_refused(
    tmp_path: Path, table: str, path: str | int, value: object, message: str | None
) -> None:
    from nvct_sim import replay

    def change(index: dict[str, object]) -> None:
        entries = index[table]
        if isinstance(entries, list):
            entries.append(value)
        else:
            assert isinstance(entries, dict)
            entries[path] = value

    expected = pytest.raises(DocumentError, match=message or "value of the wrong kind")

    with expected, replay.opened(saved(tmp_path, change)):
        pass


def test_links_in_the_driver_root_may_have_any_text(tmp_path: Path) -> None:
    from nvct_sim import replay

    def change(index: dict[str, object]) -> None:
        links = index["links"]
        assert isinstance(links, dict)
        links[f"driver/{LIB}/libnvidia-evil.so.{VERSION}"] = "/etc/passwd"

    with replay.opened(saved(tmp_path, change)) as opened:
        files = opened.inventory().files

    assert not any(file.host_path.endswith("passwd") for file in files)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index["about"].update(format=99), "a snapshot of another version"),
        (lambda index: index.pop("nodes"), "a damaged snapshot: KeyError"),
    ],
)
def test_another_version_and_a_damaged_index_are_errors(
    tmp_path: Path, change: Callable[[dict[str, object]], object], message: str
) -> None:
    with pytest.raises(DocumentError, match=message):
        document.load(saved(tmp_path, change))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"rubbish", "is not a snapshot: it is not a whole tar archive$"),
        (gzip.compress(b"rubbish"), "is not a snapshot: it is not a whole tar archive$"),
        (gzip.compress(bytes(10240)), "is not a snapshot: it has no snapshot.json"),
    ],
    ids=["no archive", "an archive of no files", "an empty archive"],  # gzip has a time in it
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(data)

    with pytest.raises(DocumentError, match=re.escape(str(path)) + ".*" + message):
        document.load(str(path))


def test_another_folder_is_refused_without_reading_it_and_a_missing_file_named(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(
        DocumentError, match=r"is not a snapshot: it has no snapshot\.json"
    ) as caught:
        document.load(str(tmp_path))

    assert caught.value.hint == "nvct snapshot makes one"
    with pytest.raises(HostError, match=r"cannot read snapshot .*/x: No such file"):
        document.load(str(tmp_path / "x"))


def test_an_archive_that_is_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    member = tarfile.TarInfo("driver/huge")
    member.size = document.TOTAL_LIMIT + 1
    (tmp_path / "bomb.tar").write_bytes(member.tobuf() + bytes(tarfile.RECORDSIZE))

    with pytest.raises(DocumentError, match="too large for a snapshot: driver/huge"):
        document.load(str(tmp_path / "bomb.tar"))


def test_what_the_headers_of_an_archive_say_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        header = tarfile.TarInfo("pax")
        header.type, header.size = tarfile.XHDTYPE, 64 << 20
        file.write(header.tobuf())
        for _ in range(64):
            file.write(bytes(1 << 20))

    tracemalloc.start()
    with pytest.raises(DocumentError, match="is not a whole tar archive"):
        document.load(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 4 << 20


def test_entries_without_a_content_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "ENTRY_LIMIT", 100)
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(200):
            member = tarfile.TarInfo(f"driver/{number}")
            member.type, member.linkname = tarfile.SYMTYPE, "x"
            archive.addfile(member)

    with pytest.raises(DocumentError, match="too large for a snapshot: it has 100 entries"):
        document.load(str(path))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_an_index_that_is_nested_without_end_is_damaged(opening: str, tmp_path: Path) -> None:
    (tmp_path / document.INDEX).write_text(opening * 100_000)

    with pytest.raises(DocumentError, match="is a damaged snapshot: RecursionError"):
        document.load(str(tmp_path))


def test_a_folder_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "TOTAL_LIMIT", 1000)
    (tmp_path / document.INDEX).write_text("{}")
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(bytes(400))

    with pytest.raises(DocumentError, match="is too large for a snapshot"):
        document.load(str(tmp_path))


@pytest.mark.parametrize("ending", ["bz2", "xz", ""])
def test_other_compressions_are_read(ending: str, tmp_path: Path) -> None:
    folder, path = saved(tmp_path, lambda _: None), tmp_path / "x.tar"
    with tarfile.open(path, f"w:{ending}") as archive:  # type: ignore[call-overload]
        archive.add(folder, "host")

    assert document.load(str(path)) == document.load(str(folder))
