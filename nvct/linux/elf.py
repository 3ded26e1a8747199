# SPDX-License-Identifier: Apache-2.0
"""Reads SONAME, DT_NEEDED, machine and notes of an ELF file, which can be hostile.

Contract: reads bytes or, by pread, an open file; every count and length has a limit; any defect of
the file raises ElfError. Like the dynamic linker, it finds SONAME and DT_NEEDED through program
headers; section headers are used for notes only.
"""

from __future__ import annotations

from _struct import iter_unpack, unpack_from

from nvct.errors import ElfError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Note: TypeAlias = tuple[str, int, bytes]
    Segment: TypeAlias = tuple[int, int, int, int]

# System V ABI, "Object Files", and its 64-bit supplement.
MAGIC = b"\x7fELF"
PT_LOAD = 1
PT_DYNAMIC = 2
SHT_NOTE = 7
DT_NULL = 0
DT_NEEDED = 1
DT_STRTAB = 5
DT_SONAME = 14
MACHINES = {
    3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86_64",
    183: "aarch64", 243: "riscv", 258: "loongarch",
}  # fmt: skip

WINDOW = 4096
"""Bytes of the first read: headers and often strings (41 libraries take 0.9 ms instead of 1.6)."""
PROGRAM_HEADER_LIMIT = 512
SECTION_LIMIT = 4096
DYNAMIC_LIMIT = 1 << 16
NEEDED_LIMIT = 1024
NAME_LIMIT = 4096
NOTE_LIMIT = 1 << 20


class Elf:
    """The parsed headers of an ELF file: its bytes, or a descriptor that the caller keeps open.

    ElfError if the file is not an ELF file, or is damaged.
    """

    __slots__ = (
        "_needed", "_order", "_sections", "_source", "_window", "bits", "machine", "soname",
    )  # fmt: skip

    def __init__(self, source: bytes | int) -> None:
        self._source = source
        self._window = b""
        self._window = self._read_some(0, WINDOW)
        head = self._window[:64]
        if len(head) < 52 or head[:4] != MAGIC or not 0 < head[4] < 3 or not 0 < head[5] < 3:
            raise ElfError("file is not an ELF file")
        self.bits = 32 * head[4]  # 32 or 64
        if self.bits == 64 and len(head) < 64:
            raise ElfError("ELF file ends within its header")
        self._order = "<" if head[5] == 1 else ">"
        layout = "HHIQQQIHHHHHH" if self.bits == 64 else "HHIIIIIHHHHHH"
        fields = self._unpack(layout, head, 16)
        machine, phoff, shoff = fields[1], fields[4], fields[5]
        # the name that uname(1) prints, or "machine-N"
        self.machine = MACHINES.get(machine, f"machine-{machine}")
        self._sections = (shoff, fields[10], fields[11], fields[12])
        self.soname: str | None = None  # DT_SONAME, or None
        self._needed: list[int] = []
        self._read_dynamic(self._segments(phoff, fields[8], fields[9]))

    def _read(self, offset: int, length: int) -> bytes:
        data = self._read_some(offset, length)
        if len(data) != length:
            raise ElfError(f"ELF file ends before offset {offset + length}")
        return data

    def _unpack(self, layout: str, data: bytes, offset: int) -> tuple[int, ...]:
        return unpack_from(self._order + layout, data, offset)

    def _rows(self, layout: str, table: bytes) -> Iterator[tuple[int, ...]]:
        """Unpack a whole table, which is ten times as fast as single rows."""
        return iter_unpack(self._order + layout, table)

    def _segments(self, offset: int, size: int, count: int) -> list[tuple[int, Segment]]:
        """Return (type, (file offset, address, size in the file, size in memory))."""
        layout, least = ("IIQQQQQQ", 56) if self.bits == 64 else ("IIIIIIII", 32)
        if not count:
            return []
        if size != least or count > PROGRAM_HEADER_LIMIT or not offset:
            raise ElfError(
                f"ELF file is damaged: {count} program headers of {size} bytes at {offset}"
            )
        rows = self._rows(layout, self._read(offset, size * count))
        if self.bits == 64:
            return [(f[0], (f[2], f[3], f[5], f[6])) for f in rows]
        return [(f[0], (f[1], f[2], f[4], f[5])) for f in rows]

    def _read_dynamic(self, segments: list[tuple[int, Segment]]) -> None:
        dynamic = [s for kind, s in segments if kind == PT_DYNAMIC]
        if not dynamic:
            return
        offset, _, size, _ = dynamic[0]
        width = self.bits // 8
        if size > DYNAMIC_LIMIT or not offset:
            raise ElfError(f"ELF file is damaged: dynamic section of {size} bytes at {offset}")
        table = self._read(offset, size - size % (2 * width))
        sonames, needed, strings = [], [], -1
        layout = "QQ" if self.bits == 64 else "II"
        for tag, value in self._rows(layout, table):
            if tag == DT_NULL:
                break
            if tag == DT_STRTAB:
                strings = value
            elif tag == DT_SONAME:
                sonames.append(value)
            elif tag == DT_NEEDED:
                needed.append(value)
        if not sonames and not needed:
            return
        if len(sonames) > 1 or len(needed) > NEEDED_LIMIT:
            raise ElfError(
                f"ELF file is damaged: {len(sonames)} SONAMEs, {len(needed)} needed libraries"
            )
        base = file_offset(strings, [s for kind, s in segments if kind == PT_LOAD])
        if sonames:
            self.soname = self._string(base + sonames[0])
        self._needed = [base + n for n in needed]

    @property
    def needed(self) -> list[str]:
        """DT_NEEDED in order; each access reads up to 1024 strings. ElfError if damaged."""
        return [self._string(offset) for offset in self._needed]

    def _string(self, offset: int) -> str:
        """Read a NUL-terminated string; most are short, so try a short read first."""
        for length in (128, NAME_LIMIT):
            data = self._read_some(offset, length)
            end = data.find(0)
            if end >= 0:
                return data[:end].decode("utf-8", "surrogateescape")
        raise ElfError(f"ELF file has no NUL-terminated string at {offset}")

    def _read_some(self, offset: int, length: int) -> bytes:
        """Read up to length bytes, fewer at the end of the file."""
        if offset + length <= len(self._window) or 0 < len(self._window) < WINDOW:
            return self._window[offset : offset + length]
        if isinstance(self._source, bytes):
            return self._source[offset : offset + length]
        from posix import pread

        try:
            return pread(self._source, length, offset)
        except OverflowError as error:
            raise ElfError(f"ELF file refers to offset {offset}, beyond its end") from error
        except OSError as error:
            raise ElfError(f"ELF file cannot be read: {error.strerror}") from error

    def notes(self, section_name: str) -> list[Note]:
        """Return (name, type, description) of each note in the first section of that name.

        A description that leaves its section is truncated: libcuda of CUDA 13.2.1 for Orin has
        such a note, and nvidia-container-toolkit v1.20 accepts it. ElfError if the section headers
        or the notes are damaged.
        """
        offset, size, count, names = self._sections
        layout, least = ("IIQQQQIIQQ", 64) if self.bits == 64 else ("IIIIIIIIII", 40)
        if not count:
            return []
        if size != least or count > SECTION_LIMIT or names >= count:
            raise ElfError(f"ELF file is damaged: {count} section headers of {size} bytes")
        table = self._read(offset, size * count)
        headers = [self._unpack(layout, table, i * size) for i in range(count)]
        for header in headers:
            if (
                header[1] != SHT_NOTE
                or self._string(headers[names][4] + header[0]) != section_name
            ):
                continue
            if header[5] > NOTE_LIMIT:
                raise ElfError(f"ELF file has a note section of more than {NOTE_LIMIT} bytes")
            return self._read_notes(self._read(header[4], header[5]), header[8])
        return []

    def _read_notes(self, data: bytes, align: int) -> list[Note]:
        """Split a note section; its words have 4 bytes in 64-bit files as well."""
        align = 8 if align == 8 else 4
        notes = []
        offset = 0
        while offset + 12 <= len(data):
            name_size, size, kind = self._unpack("III", data, offset)
            name_at = offset + 12
            start = name_at + name_size
            start += -start % align
            if start > len(data):
                raise ElfError("ELF file has a note whose name leaves its section")
            name = data[name_at : name_at + name_size].rstrip(b"\0")
            notes.append((name.decode("utf-8", "replace"), kind, data[start : start + size]))
            offset = start + size
            offset += -offset % align
        return notes


def file_offset(address: int, loads: list[Segment]) -> int:
    """Return the offset of an address in the file; ElfError if no PT_LOAD segment has it."""
    for offset, start, size, _ in loads:
        if start <= address < start + size:
            return offset + address - start
    raise ElfError(f"ELF file has no segment with address {address}")
