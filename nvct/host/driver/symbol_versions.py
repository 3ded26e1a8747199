# SPDX-License-Identifier: Apache-2.0
"""Reads the symbol versions that an ELF file needs and defines, such as GLIBC_2.34. Cold.

The dynamic linker refuses a library that needs a version which another library lacks (Linux
Standard Base, "Symbol Versioning"). Contract: as `nvct.linux.elf`; the file can be hostile.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import calcsize
from struct import error as StructError  # noqa: N812 - the name of the module is not enough

from nvct.errors import ElfError
from nvct.linux import elf
from nvct.linux.elf import DT_NULL, DT_STRTAB, DYNAMIC_LIMIT, PT_DYNAMIC, PT_LOAD, Elf

DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
WEAK = 0x2  # VER_FLG_WEAK: without the version, the linker only warns
BASE = 0x1  # VER_FLG_BASE: the entry with the name of the library itself
NEED, NEED_ENTRY = "HHIII", "IHHII"
DEFINITION, NAME = "HHHHIII", "II"
ENTRIES = 4096  # versions of one file; libc.so.6 defines 40


class VersionedElf(Elf):
    """The headers of an ELF file, and its symbol versions."""

    __slots__ = ("_entries", "_loads", "defines", "needs")

    def _read_dynamic(self, segments: list[tuple[int, elf.Segment]]) -> None:
        super()._read_dynamic(segments)
        self.needs: dict[str, list[str]] = {}  # by library: the versions that it must define
        self.defines: set[str] = set()  # the versions that this file defines
        self._entries = 0
        self._loads = [segment for kind, segment in segments if kind == PT_LOAD]
        tags = self._tags([segment for kind, segment in segments if kind == PT_DYNAMIC])
        if DT_STRTAB not in tags:
            return
        try:
            self._read_needs(tags)
            self._read_definitions(tags)
        except StructError as error:
            raise ElfError("ELF file has damaged symbol versions") from error

    def _tags(self, dynamic: list[elf.Segment]) -> dict[int, int]:
        """Return the last value of each tag; {} for a file without a dynamic section."""
        if not dynamic or dynamic[0][2] > DYNAMIC_LIMIT:
            return {}
        offset, _, size, _ = dynamic[0]
        layout = "QQ" if self.bits == 64 else "II"
        tags = {}
        for tag, value in self._rows(layout, self._read(offset, size - size % calcsize(layout))):
            if tag == DT_NULL:
                break
            tags[tag] = value
        return tags

    def _read_needs(self, tags: dict[int, int]) -> None:
        strings = elf.file_offset(tags[DT_STRTAB], self._loads)
        rows = self._chain(tags.get(DT_VERNEED, 0), tags.get(DT_VERNEEDNUM, 0), NEED, 4)
        for at, (_, count, file, first, _) in rows:
            names = [
                self._string(strings + name)
                for _, (_, flags, _, name, _) in self._entry_chain(
                    at + first, count, NEED_ENTRY, 4
                )
                if not flags & WEAK
            ]
            self.needs.setdefault(self._string(strings + file), []).extend(names)

    def _read_definitions(self, tags: dict[int, int]) -> None:
        strings = elf.file_offset(tags[DT_STRTAB], self._loads)
        rows = self._chain(tags.get(DT_VERDEF, 0), tags.get(DT_VERDEFNUM, 0), DEFINITION, 6)
        for at, (_, flags, _, count, _, first, _) in rows:
            if flags & BASE:
                continue
            for _, (name, _) in self._entry_chain(at + first, min(count, 1), NAME, 1):
                self.defines.add(self._string(strings + name))

    def _chain(
        self, address: int, count: int, layout: str, next_field: int
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        if address and count:
            offset = elf.file_offset(address, self._loads)
            yield from self._entry_chain(offset, count, layout, next_field)

    def _entry_chain(
        self, offset: int, count: int, layout: str, next_field: int
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield offset and fields of each entry; `next_field` has the distance to the next one."""
        for _ in range(count):
            self._entries += 1
            if self._entries > ENTRIES:
                raise ElfError(f"ELF file has more than {ENTRIES} symbol versions")
            fields = self._unpack(layout, self._read(offset, calcsize(f"={layout}")), 0)
            yield offset, fields
            if not fields[next_field]:
                return
            offset += fields[next_field]
