# SPDX-License-Identifier: Apache-2.0
"""Properties of the ELF reader: any damaged file raises only an ElfError."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import ElfError
from nvct.linux import elf
from nvct_sim.elf_writer import shared_object

MACHINES = st.sampled_from(["x86_64", "aarch64", "i386"])
LIBRARY = st.text(alphabet="lib.so0123456789-_é", min_size=1, max_size=40)
NOTE = struct.pack("<III", 4, 4, 1) + b"abc\0" + b"wxyz"


def read_all(data: bytes) -> bool:
    """Read everything; tell whether it could be read."""
    try:
        elf.Elf(data).notes(".note.x")
    except ElfError:
        return False
    return True


@given(MACHINES, LIBRARY, st.lists(LIBRARY, max_size=8))
def test_what_is_written_is_read(machine: str, soname: str, needed: list[str]) -> None:
    library = elf.Elf(shared_object(machine, soname=soname, needed=needed))

    assert (library.machine, library.soname, library.needed) == (machine, soname, needed)


@given(MACHINES, st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6))
def test_damage_raises_an_elf_error_or_is_harmless(
    machine: str, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(
        shared_object(machine, soname="liba.so", needed=["libb.so"], sections={".note.x": NOTE})
    )
    assert read_all(bytes(data))
    for position, value in damage:
        data[position % len(data)] = value

    read_all(bytes(data))


@given(st.binary(max_size=300), st.sampled_from([b"\1\1", b"\2\1", b"\1\2", b"\2\2"]))
def test_any_bytes_raise_an_elf_error_or_are_harmless(data: bytes, ident: bytes) -> None:
    read_all(b"\x7fELF" + ident + data)

    assert not read_all(data.lstrip(b"\x7f"))
