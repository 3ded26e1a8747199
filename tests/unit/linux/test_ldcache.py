# SPDX-License-Identifier: Apache-2.0
"""ld.so.cache: parsing, positions of new entries, and comparison with glibc's own tools."""

import os
import re
import shutil
import struct
from pathlib import Path

import pytest

from nvct.errors import ElfError, LdCacheError
from nvct.linux import elf, ldcache
from nvct_sim.elf_writer import shared_object
from tests.support.processes import captured

LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin:/bin")
MACHINE = os.uname().machine
"""ldconfig's own."""
needs_ldconfig = pytest.mark.skipif(LDCONFIG is None, reason="needs ldconfig")

# Numbers against letters and against nothing, leading zeros, long numbers, signs of char.
NAMES = [
    "libc.so.6", "libcuda.so", "libcuda.so.1", "libcuda.so.535", "libfoo.so.9", "libfoo.so.10",
    "libfoo2.so.1", "libfoo10.so.1", "libfoo-2.so", "libfoo_2.so", "libfooA.so", "libfooa.so",
    "libnvidia-ml.so.1", "libz.so.1", "liba1b.so", "liba1.so", "liba.so", "lib1.so",
    "libx+y.so.3", "libx~.so", "libbig20230804.so", "libGLX_nvidia.so.0",
]  # fmt: skip


def ldconfig(root: Path, *arguments: str) -> str:
    assert LDCONFIG is not None
    command = [LDCONFIG, "-r", str(root), *arguments]
    return captured(command, check=True).stdout


def image(root: Path, names: list[str], *arguments: str) -> bytes:
    """Make a folder of libraries and its cache by the real ldconfig."""
    folder = root / "opt/lib"
    folder.mkdir(parents=True)
    (root / "etc").mkdir()
    for name in names:
        (folder / name).write_bytes(shared_object(soname=name))
    ldconfig(root, *arguments, "/opt/lib")
    return (root / "etc/ld.so.cache").read_bytes()


def names_of(data: bytes) -> list[str]:
    return [entry[0] for entry in ldcache.parse(data).entries]


@pytest.mark.parametrize(
    ("machine", "flags"), [("x86_64", 0x0303), ("aarch64", 0x0A03), ("i386", 0x0003)]
)
def test_no_cache_gives_a_new_one_with_the_flags_of_its_machine(machine: str, flags: int) -> None:
    data = ldcache.merge(None, [("liba.so.1", "/x/liba.so.1")], machine=machine)
    empty = ldcache.merge(None, [], machine=machine)

    assert ldcache.parse(data).entries == [("liba.so.1", "/x/liba.so.1", flags, 0, 0)]
    assert len(empty) == 48
    assert ldcache.parse(empty).entries == []


@pytest.mark.parametrize(
    ("image", "added", "order"),
    [
        (["/image"], ["/ours"], ["/ours", "/image"]),
        (["/a", "/b"], ["/b"], ["/b", "/a"]),
    ],
    ids=["before others", "moved to the front"],
)
def test_added_libraries_come_first_of_their_name(
    image: list[str], added: list[str], order: list[str]
) -> None:
    def merged(old: bytes | None, folders: list[str]) -> bytes:
        pairs = [("liba.so", f"{folder}/liba.so") for folder in folders]
        return ldcache.merge(old, pairs, machine="i386")

    old = merged(None, image)
    data = merged(old, added)

    assert ldcache.parse(data).find("liba.so") == [f"{folder}/liba.so" for folder in order]
    assert (len(data) == len(old)) == (sorted(order) == sorted(image))


def test_entries_of_dropped_folders_are_removed() -> None:
    old = ldcache.merge(
        None, [("liba.so", "/a/liba.so"), ("libb.so", "/b/libb.so")], machine="i386"
    )

    data = ldcache.merge(old, [], machine="i386", drop_dirs=["/a/"])

    assert names_of(data) == ["libb.so"]


def test_a_name_that_is_not_utf_8_is_unchanged() -> None:
    name = b"lib\xff\xfe.so".decode("utf-8", "surrogateescape")

    data = ldcache.merge(None, [(name, f"/x/{name}")], machine="x86_64")

    assert names_of(data) == [name]
    assert b"/x/lib\xff\xfe.so\0" in data


def test_bytes_above_ascii_sort_by_the_sign_of_the_machines_char() -> None:
    high, low = "lib\xff.so", "libz.so"
    added = [(high, f"/{high}"), (low, f"/{low}")]

    assert names_of(ldcache.merge(None, added, machine="x86_64")) == [low, high]
    assert names_of(ldcache.merge(None, added, machine="aarch64")) == [high, low]


def test_a_nul_in_a_name_and_an_unknown_machine_are_refused() -> None:
    with pytest.raises(LdCacheError, match="NUL"):
        ldcache.merge(None, [("lib\0a.so", "/a")], machine="x86_64")
    with pytest.raises(LdCacheError, match="'vax'"):
        ldcache.merge(None, [], machine="vax")


def _cache(*, flags: int = 2, count: int = 0, extension: int = 0, content: bytes = b"") -> bytes:
    head = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", count, 0, flags, extension)
    return head + content


def _extension(tag: int, flags: int = 0, start: int = 48, size: int = 0) -> bytes:
    return struct.pack("<IIIIII", 0xEAA42174, 1, tag, flags, start, size)


ENTRY = struct.pack("<iIIIQ", 0x303, 72, 72, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"ld.so-1.7.0\0\0\0\0\0", id="old format alone"),
        pytest.param(b"ld.so-1.7.0\0\xff\xff\xff\xff", id="old format, absurd count"),
        pytest.param(b"glibc-ld.so.cache1.2" + bytes(28), id="another version"),
        pytest.param(_cache()[:30], id="half a header"),
        pytest.param(_cache(flags=3), id="big endian"),
        pytest.param(_cache(flags=1), id="invalid byte order"),
        pytest.param(_cache(count=1), id="no room for entries"),
        pytest.param(_cache(count=0xFFFFFFFF), id="absurd count"),
        pytest.param(_cache(count=1, content=ENTRY + b"lib"), id="string without end"),
        pytest.param(_cache(count=1, content=ENTRY), id="string outside"),
        pytest.param(_cache(extension=999), id="extension outside"),
        pytest.param(_cache(extension=48, content=bytes(8)), id="unknown extension"),
        pytest.param(_cache(extension=48, content=b"\0"), id="half an extension"),
        pytest.param(_cache(extension=48, content=_extension(7)), id="unknown section"),
        pytest.param(_cache(extension=48, content=_extension(0, 1)), id="unknown section flag"),
        pytest.param(
            _cache(extension=48, content=_extension(0, 0, 48, 999)), id="section outside"
        ),
        pytest.param(_cache(extension=48, content=_extension(1, 0, 48, 3)), id="odd hwcaps"),
        pytest.param(_cache(extension=48, content=_extension(1, 0, 48, 4)), id="hwcaps outside"),
    ],
)
def test_a_damaged_or_unknown_cache_is_an_error(data: bytes) -> None:
    with pytest.raises(LdCacheError):
        ldcache.parse(data)


def test_a_very_long_string_is_refused_where_it_is_used() -> None:
    data = _cache(count=1, content=ENTRY + b"x" * 5000 + b"\0")

    with pytest.raises(LdCacheError, match="longer than 4096"):
        _ = ldcache.parse(data).entries


@needs_ldconfig
def test_a_real_cache_is_read_and_kept_with_its_generator(tmp_path: Path) -> None:
    old = image(tmp_path, NAMES)

    merged = ldcache.merge(old, [("libnew.so.1", "/opt/new/libnew.so.1")], machine="x86_64")

    before, after = ldcache.parse(old), ldcache.parse(merged)
    assert sorted(before.entries) == sorted(e for e in after.entries if e[0] != "libnew.so.1")
    assert after.generator == before.generator
    assert before.generator is not None


@needs_ldconfig
def test_the_order_of_entries_is_that_of_ldconfig(tmp_path: Path) -> None:
    expected = ldcache.parse(image(tmp_path, NAMES)).entries

    merged = ldcache.merge(None, [(n, f"/opt/lib/{n}") for n in sorted(NAMES)], machine=MACHINE)

    assert ldcache.parse(merged).entries == expected
    assert len(expected) == len(NAMES)


@needs_ldconfig
@pytest.mark.parametrize("form", ["new", "compat"])
def test_ldconfig_lists_what_was_merged(tmp_path: Path, form: str) -> None:
    old = image(tmp_path, NAMES, "-c", form)
    added = [("libcuda.so.1", "/drv/libcuda.so.1"), ("libnew.so", "/drv/libnew.so")]

    (tmp_path / "etc/ld.so.cache").write_bytes(ldcache.merge(old, added, machine="x86_64"))

    listed = ldconfig(tmp_path, "-p").splitlines()
    assert "\tlibnew.so (libc6,x86-64) => /drv/libnew.so" in listed
    cuda = [line.split(" => ")[1] for line in listed if line.startswith("\tlibcuda.so.1 ")]
    assert cuda == ["/drv/libcuda.so.1", "/opt/lib/libcuda.so.1"]
    assert listed[0].startswith(f"{len(ldcache.parse(old).entries) + 2} libs found")


@needs_ldconfig
@pytest.mark.parametrize("form", ["new", "compat"])
def test_hwcaps_subdirectories_survive_a_merge(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "opt/lib/glibc-hwcaps/x86-64-v3"
    folder.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    for folder_path in (folder, folder.parents[1]):
        (folder_path / "libz.so.1").write_bytes(shared_object(soname="libz.so.1"))
    ldconfig(tmp_path, "-c", form, "/opt/lib")
    old = (tmp_path / "etc/ld.so.cache").read_bytes()
    if not ldcache.parse(old).hwcaps:
        pytest.skip("ldconfig is older than glibc 2.33")

    merged = ldcache.merge(old, [("liba.so", "/drv/liba.so")], machine=MACHINE)

    (tmp_path / "etc/ld.so.cache").write_bytes(merged)
    listed = ldconfig(tmp_path, "-p")
    assert re.search(r'libz\.so\.1 \(libc6,\S+, hwcap: "x86-64-v3"\)', listed)


@needs_ldconfig
def test_ldconfig_can_rebuild_a_merged_cache(tmp_path: Path) -> None:
    old = image(tmp_path, NAMES)
    cache = tmp_path / "etc/ld.so.cache"
    cache.write_bytes(ldcache.merge(old, [("liba.so", "/drv/liba.so")], machine="x86_64"))

    ldconfig(tmp_path, "/opt/lib")

    assert cache.read_bytes() == old


NOTE = struct.pack("<III", 19, 3, 7) + b"NVIDIA Corporation\0\0" + b"abc\0"


@pytest.mark.parametrize(("machine", "bits"), [("x86_64", 64), ("aarch64", 64), ("i386", 32)])
def test_a_library_has_a_machine_a_soname_and_dependencies(machine: str, bits: int) -> None:
    data = shared_object(machine, soname="libcuda.so.1", needed=["libc.so.6", "libm.so.6"])

    library = elf.Elf(data)

    assert (library.machine, library.bits, library.soname) == (machine, bits, "libcuda.so.1")
    assert library.needed == ["libc.so.6", "libm.so.6"]


def test_an_open_file_is_read_without_moving_its_position(tmp_path: Path) -> None:
    path = tmp_path / "liba.so"
    path.write_bytes(shared_object(soname="liba.so.1", size=1 << 20))

    with path.open("rb") as file:
        assert elf.Elf(file.fileno()).soname == "liba.so.1"
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0


@pytest.mark.parametrize("machine", ["x86_64", "i386"])
def test_notes_of_a_section_are_found(machine: str) -> None:
    data = shared_object(machine, soname="libcuda.so.1", sections={".note.x": NOTE + NOTE})

    notes = elf.Elf(data).notes(".note.x")

    assert notes == [("NVIDIA Corporation", 7, b"abc")] * 2


def test_a_note_longer_than_its_section_ends_with_it() -> None:
    """As Orin's libcuda of CUDA 13.2.1 has it; the last byte here is padding."""
    data = shared_object(sections={".note.x": NOTE[:-2]})

    assert elf.Elf(data).notes(".note.x") == [("NVIDIA Corporation", 7, b"ab")]


def test_a_note_name_that_exceeds_its_section_is_an_error() -> None:
    data = shared_object(sections={".note.x": NOTE[:20]})

    with pytest.raises(ElfError, match="leaves its section"):
        elf.Elf(data).notes(".note.x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"/* GNU ld script */ GROUP ( libc.so.6 )",
        b"\x7fELF",
        b"\x7fELF\x03\x01" + bytes(100),
        b"\x7fELF\x02\x07" + bytes(100),
    ],
)
def test_a_file_that_is_not_elf_is_an_error(data: bytes) -> None:
    with pytest.raises(ElfError, match="not an ELF file"):
        elf.Elf(data)


def test_a_truncated_library_is_an_error_or_has_its_names() -> None:
    data = shared_object(soname="liba.so.1", needed=["libc.so.6"])
    readable = 0
    for size in range(len(data)):
        try:
            library = elf.Elf(data[:size])
        except ElfError:
            continue
        readable += 1
        assert library.soname == "liba.so.1"

    assert 0 < readable < len(data)


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(ElfError, match="cannot be read"):
            elf.Elf(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        pytest.param(54, 1, "program headers of 1 bytes", id="size of a program header"),
        pytest.param(56, 0xFFFF, "65535 program headers", id="program headers"),
        pytest.param(58, 1, "section headers of 1 bytes", id="size of a section header"),
    ],
)
def test_impossible_headers_are_refused(offset: int, value: int, message: str) -> None:
    data = bytearray(shared_object(soname="liba.so.1", sections={".note.x": NOTE}))
    struct.pack_into("<H", data, offset, value)

    with pytest.raises(ElfError, match=message):
        elf.Elf(bytes(data)).notes(".note.x")


def test_a_dynamic_section_is_read_up_to_a_limit() -> None:
    data = bytearray(shared_object(soname="liba.so.1"))
    (table,) = struct.unpack_from("<Q", data, 32)
    (count,) = struct.unpack_from("<H", data, 56)
    for at in range(table, table + 56 * count, 56):
        if struct.unpack_from("<I", data, at) == (2,):  # PT_DYNAMIC
            struct.pack_into("<Q", data, at + 32, 1 << 40)

    with pytest.raises(ElfError, match=f"dynamic section of {1 << 40} bytes"):
        elf.Elf(bytes(data))
