# SPDX-License-Identifier: Apache-2.0
import os
import struct
from pathlib import Path

import pytest

from nvct.errors import ElfError
from nvct.linux import elf
from nvct_sim.elf_writer import shared_object

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
    with pytest.raises(ElfError, match="no ELF file"):
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
        pytest.param(56, 0xFFFF, "has 65535 program headers", id="program headers"),
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
