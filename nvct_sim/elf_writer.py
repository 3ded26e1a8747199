# SPDX-License-Identifier: Apache-2.0
"""Writes small shared objects that a dynamic loader can load: the files of a simulated driver.

An object is one readable and writable segment with a dynamic section (SONAME, NEEDED, hash and
symbol table). It also has a section header table, because tools such as Go's debug/elf read only
that. Exported symbols are data, by which a test finds out with ``dlsym`` which file is loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = (
    (0, 1, 4, 5, 6, 10, 11, 14)  # System V gABI, "Dynamic Section"
)  # fmt: skip
HEADERS = 64 + 3 * 56  # of the 64-bit form; the 32-bit form is shorter
SHT_PROGBITS, SHT_STRTAB, SHT_HASH, SHT_DYNAMIC, SHT_NOTE, SHT_DYNSYM = 1, 3, 5, 6, 7, 11


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of an architecture."""

    number: int  # e_machine
    bits: int
    page: int  # alignment of segments; 64 KiB on aarch64, whose kernels may use such pages
    triplet: str  # name of Debian's library folder


MACHINES = {
    "x86_64": Machine(62, 64, 0x1000, "x86_64-linux-gnu"),
    "aarch64": Machine(183, 64, 0x10000, "aarch64-linux-gnu"),
    "i386": Machine(3, 32, 0x1000, "i386-linux-gnu"),
}


@dataclass(slots=True)
class _Strings:
    data: bytearray = field(default_factory=lambda: bytearray(b"\0"))

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


@dataclass(slots=True)
class _Section:
    name: str
    kind: int
    data: bytes
    link: int = 0
    info: int = 0
    entry: int = 0
    flags: int = 2  # SHF_ALLOC
    address: int = 0


def _symbol(bits: int, name: int, value: int, size: int) -> bytes:
    if not name:
        return bytes(24 if bits == 64 else 16)
    info, section = 0x11, 1  # STB_GLOBAL, STT_OBJECT; any defined section index will do
    if bits == 64:
        return struct.pack("<IBBHQQ", name, info, 0, section, value, size)
    return struct.pack("<IIIBBH", name, value, size, info, 0, section)


def _layout(sections: Sequence[_Section], start: int) -> int:
    """Set the address of every section, from start on; return the end of the last section."""
    offset = start
    for section in sections:
        offset = (offset + 15) & ~15
        section.address = offset
        offset += len(section.data)
    return offset


def shared_object(
    machine: str = "x86_64",
    *,
    soname: str | None = None,
    needed: Sequence[str] = (),
    symbols: Mapping[str, bytes] | None = None,
    sections: Mapping[str, bytes] | None = None,
    size: int = 0,
) -> bytes:
    """Return the bytes of a shared object, with DT_SONAME and DT_NEEDED in this order.

    Further `sections`, such as .note.cuda.fwd_compatibility, are not loaded; a shorter file is
    padded with NUL to `size` bytes.
    """
    m = MACHINES[machine]
    strings = _Strings()
    tags = [(DT_NEEDED, strings.add(name)) for name in needed]
    if soname is not None:
        tags.append((DT_SONAME, strings.add(soname)))
    named = [(strings.add(name), value + b"\0") for name, value in (symbols or {}).items()]
    loaded, end = _loaded(m, bytes(strings.data), tags, named)
    extra = [
        _Section(name, SHT_NOTE if name.startswith(".note") else SHT_PROGBITS, content, flags=0)
        for name, content in (sections or {}).items()
    ]
    return _assemble(m, loaded, extra, end).ljust(size, b"\0")


def _loaded(
    m: Machine, strings: bytes, tags: list[tuple[int, int]], named: list[tuple[int, bytes]]
) -> tuple[list[_Section], int]:
    """Return the segment's sections with their addresses, .dynamic last, and the segment's end."""
    count = len(named) + 1
    # One bucket chains all symbols: a lookup walks the whole table, which is short.
    chain = [
        1,
        count,
        int(count > 1),
        0,
        *(i + 1 if i + 1 < count else 0 for i in range(1, count)),
    ]
    width, word = (24, 8) if m.bits == 64 else (16, 4)
    data = _Section(".data", SHT_PROGBITS, b"".join(value for _, value in named))
    dynstr = _Section(".dynstr", SHT_STRTAB, strings)
    dynsym = _Section(".dynsym", SHT_DYNSYM, bytes(width * count), link=2, info=1, entry=width)
    hashes = _Section(".hash", SHT_HASH, struct.pack(f"<{len(chain)}I", *chain), link=3, entry=4)
    dynamic = _Section(".dynamic", SHT_DYNAMIC, bytes(2 * word * (len(tags) + 6)), link=2)
    dynamic.entry = 2 * word
    dynamic.flags = 3  # SHF_WRITE too: loaders before glibc 2.35 relocate it in place
    sections = [data, dynstr, dynsym, hashes, dynamic]
    end = _layout(sections, HEADERS)
    address, table = data.address, [_symbol(m.bits, 0, 0, 0)]
    for name, value in named:
        table.append(_symbol(m.bits, name, address, len(value)))
        address += len(value)
    dynsym.data = b"".join(table)
    tables = [(DT_HASH, hashes.address), (DT_STRTAB, dynstr.address), (DT_SYMTAB, dynsym.address)]
    sizes = [(DT_STRSZ, len(dynstr.data)), (DT_SYMENT, width)]
    form, every = "<QQ" if m.bits == 64 else "<II", [*tags, *tables, *sizes, (DT_NULL, 0)]
    dynamic.data = b"".join(struct.pack(form, tag, value) for tag, value in every)
    return sections, end


def _assemble(m: Machine, loaded: list[_Section], extra: list[_Section], end: int) -> bytes:
    """Return the file: ELF header, program headers, sections, section header table."""
    names = _Strings()
    shstrtab = _Section(".shstrtab", SHT_STRTAB, b"", flags=0)
    everything = [*loaded, *extra, shstrtab]
    offsets = [names.add(section.name) for section in everything]
    shstrtab.data = bytes(names.data)
    table_at = (_layout([*extra, shstrtab], end) + 15) & ~15
    out = bytearray(table_at)
    dynamic = loaded[-1]
    segments = [  # type, flags, start, size, alignment
        (1, 6, 0, end, m.page),
        (2, 6, dynamic.address, len(dynamic.data), 8),
        (0x6474E551, 6, 0, 0, 16),  # PT_GNU_STACK: not executable
    ]
    head = _header(m, table_at, len(segments), len(everything) + 1)
    head += b"".join(_segment(m.bits, segment) for segment in segments)
    out[: len(head)] = head
    for section in everything:
        out[section.address : section.address + len(section.data)] = section.data
    out += bytes(64 if m.bits == 64 else 40)
    for name, section in zip(offsets, everything, strict=True):
        out += _section_header(m.bits, name, section)
    return bytes(out)


def _header(m: Machine, table_at: int, segments: int, sections: int) -> bytes:
    wide = m.bits == 64
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1, 1, 0)) + bytes(8)
    form = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
    sizes = (64, 56, segments, 64) if wide else (52, 32, segments, 40)
    start = 64 if wide else 52
    return ident + struct.pack(
        form, 3, m.number, 1, 0, start, table_at, 0, *sizes, sections, sections - 1
    )


def _segment(bits: int, segment: tuple[int, int, int, int, int]) -> bytes:
    kind, flags, offset, size, align = segment
    if bits == 64:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, align)
    return struct.pack("<IIIIIIII", kind, offset, offset, offset, size, size, flags, align)


def _section_header(bits: int, name: int, s: _Section) -> bytes:
    form = "<IIQQQQIIQQ" if bits == 64 else "<IIIIIIIIII"
    address = s.address if s.flags else 0
    align = 4 if s.kind == SHT_NOTE else 16
    fields = (address, s.address, len(s.data), s.link, s.info, align, s.entry)
    return struct.pack(form, name, s.kind, s.flags, *fields)
