# SPDX-License-Identifier: Apache-2.0
"""Read ld.so.cache, and merge libraries into it as data, so that no ldconfig has to run.

Contract: bytes in, bytes out; nothing is opened. Reads glibc's format 1.1, alone or behind the
old libc5 table (``ldconfig -c compat``), little endian; writes format 1.1 alone, which every
glibc since 2.2 reads. Generator and glibc-hwcaps extension (glibc 2.33) are kept. A cache that
another glibc could have written but this module does not know is an error, never a guess.
"""

from __future__ import annotations

from nvct.errors import LdCacheError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    Entry: TypeAlias = tuple[str, str, int, int, int]
    Record: TypeAlias = tuple[int, int, int, int, int]

# glibc, sysdeps/generic/dl-cache.h: struct cache_file, cache_file_new, file_entry_new.
OLD_MAGIC = b"ld.so-1.7.0"
OLD_HEADER = 16
OLD_ENTRY = 12
MAGIC = b"glibc-ld.so.cache1.1"
HEADER = 48
ENTRY = 24
ENTRY_LAYOUT = "iIIIQ"
ENDIAN_UNSET = 0
ENDIAN_LITTLE = 2
EXTENSION_MAGIC = 0xEAA42174
EXTENSION_HEADER = 8
SECTION = 16
TAG_GENERATOR = 0
TAG_HWCAPS = 1
HWCAP_EXTENSION = 1 << 62
"""Set in an entry's hwcap where its low 32 bits are an index into the glibc-hwcaps section."""

ELF_LIBC6 = 0x0003
FLAGS = {
    "x86_64": ELF_LIBC6 | 0x0300,
    "aarch64": ELF_LIBC6 | 0x0A00,
    "i386": ELF_LIBC6,
}
"""What the dynamic linker of a machine wants of an entry (glibc, _DL_CACHE_DEFAULT_ID)."""

LIMIT = 16 << 20
RECORD_LIMIT, FIND_LIMIT = 1 << 16, 64  # strings may overlap: few bytes can be much text
STRING_LIMIT = 4096  # PATH_MAX
NAME_LIMIT = 255  # NAME_MAX: of a library; an order key takes 30 times the memory and 80 ns a byte
SAME_LIMIT = 1024
"""Entries of one name, by the order of names: `libx.so.1` and `libx.so.0001` are one."""
DIGITS = frozenset(b"0123456789")
NUMBER = 1 << 40
"""Stands before a number in an order key, above every character."""


class Cache:
    """A parsed cache.

    Attributes:
        records: (flags, offset of the name, offset of the path, osversion, hwcap) for each
            library, in the file's order; offsets count from `strings` less `base`.
        base: what the offsets of the first byte of `strings` is.
        strings: the string table.
        generator: who wrote the file, or None.
        hwcaps: offsets of the glibc-hwcaps subdirectories' names.
        extended: whether the file has an extension at all.
    """

    __slots__ = ("base", "extended", "generator", "hwcaps", "records", "strings")

    def __init__(self, base: int, records: list[Record], strings: bytes) -> None:
        self.base = base
        self.records = records
        self.strings = strings
        self.generator: bytes | None = None
        self.hwcaps: tuple[int, ...] = ()
        self.extended = False

    @property
    def entries(self) -> list[Entry]:
        """All libraries as (name, path, flags, osversion, hwcap), in the file's order."""
        text = self.text
        return [(text(key), text(value), f, o, h) for f, key, value, o, h in self.records]

    def text(self, offset: int) -> str:
        """Return the string at an offset of a record."""
        return self.raw(offset).decode("utf-8", "surrogateescape")

    def raw(self, offset: int) -> bytes:
        """Return the string at an offset of a record, as bytes."""
        start = offset - self.base
        end = self.strings.find(0, start, start + STRING_LIMIT)
        if end < 0:
            raise LdCacheError(f"ld.so.cache has a string longer than {STRING_LIMIT} bytes")
        return self.strings[start:end]

    def find(self, name: str) -> list[str]:
        """Return the paths of a name's first FIND_LIMIT entries, as the linker orders them."""
        wanted = encode(name)
        found = [r[2] for r in self.records if self.raw(r[1]) == wanted]
        return list(map(self.text, found[:FIND_LIMIT]))


def encode(text: str) -> bytes:
    """Return a name or path as the bytes that stand in a cache.

    Raises:
        LdCacheError: it holds a NUL and can't.
    """
    data = text.encode("utf-8", "surrogateescape")
    if 0 in data:
        raise LdCacheError(f"{text!r} cannot stand in ld.so.cache: it holds a NUL")
    return data


def parse(data: bytes) -> Cache:
    """Parse the content of an ld.so.cache.

    Raises:
        LdCacheError: it is damaged, or of a format, byte order or extension unknown here.
    """
    from _struct import iter_unpack, unpack_from

    start = _find_header(data)
    if len(data) < start + HEADER:
        raise LdCacheError("ld.so.cache ends within its header")
    count, _, flags, extension = unpack_from("<IIB3xI", data, start + len(MAGIC))
    if flags & 3 not in {ENDIAN_UNSET, ENDIAN_LITTLE}:
        raise LdCacheError(f"ld.so.cache has byte order {flags & 3}, want little endian")
    first = start + HEADER
    base = HEADER + count * ENTRY
    end = extension or len(data)
    if start + base > end or end > len(data) or count > RECORD_LIMIT:
        raise LdCacheError(f"ld.so.cache has no room for its {count} libraries")
    records = list(iter_unpack("<" + ENTRY_LAYOUT, data[first : start + base]))
    cache = Cache(base, records, data[start + base : end])
    _check_offsets(cache, [r[1] for r in records])
    _check_offsets(cache, [r[2] for r in records])
    if extension:
        _read_extension(cache, data, extension)
    return cache


def _find_header(data: bytes) -> int:
    """Return where the header of format 1.1 stands."""
    if len(data) > LIMIT:
        raise LdCacheError(f"ld.so.cache is {len(data)} bytes long, more than {LIMIT}")
    start = 0
    if data.startswith(OLD_MAGIC):
        count = int.from_bytes(data[OLD_HEADER - 4 : OLD_HEADER], "little")
        start = OLD_HEADER + count * OLD_ENTRY
        start = (start + 7) & ~7  # glibc, ALIGN_CACHE
    if data[start : start + len(MAGIC)] != MAGIC:
        raise LdCacheError("ld.so.cache has an unknown format, want glibc-ld.so.cache1.1")
    return start


def _check_offsets(cache: Cache, offsets: Sequence[int]) -> None:
    """Refuse offsets that are no NUL-terminated strings of the string table."""
    if not offsets:
        return
    last = cache.strings.rfind(0)
    if min(offsets) < cache.base or max(offsets) - cache.base > last:
        raise LdCacheError("ld.so.cache names a string outside its string table")


def _read_extension(cache: Cache, data: bytes, offset: int) -> None:
    from _struct import unpack_from

    table = offset + EXTENSION_HEADER
    if len(data) < table:
        raise LdCacheError("ld.so.cache ends within its extension")
    magic, count = unpack_from("<II", data, offset)
    if magic != EXTENSION_MAGIC or offset % 4 or len(data) < table + count * SECTION:
        raise LdCacheError("ld.so.cache has an unknown or damaged extension")
    cache.extended = True
    known = {TAG_GENERATOR, TAG_HWCAPS}
    for index in range(count):
        tag, flags, start, size = unpack_from("<4I", data, table + index * SECTION)
        if start + size > len(data):
            raise LdCacheError("ld.so.cache has an extension section outside the file")
        if flags or tag not in known:
            raise LdCacheError(f"ld.so.cache has an unknown extension section {tag}")
        known.remove(tag)
        content = data[start : start + size]
        if tag == TAG_GENERATOR:
            cache.generator = content
        elif size % 4:
            raise LdCacheError(f"ld.so.cache has a glibc-hwcaps section of {size} bytes")
        else:
            cache.hwcaps = unpack_from(f"<{size // 4}I", content, 0)
            _check_offsets(cache, cache.hwcaps)


def order_key(name: bytes, *, signed: bool = True) -> tuple[int, ...]:
    """Return a key that sorts names as the dynamic linker's bisection compares them.

    Numbers compare as numbers and stand above every character (glibc, _dl_cache_libcmp). They
    wrap at 32 bits there, as do they here.

    Args:
        name: the name.
        signed: whether the machine's char is signed (x86: yes, Arm: no).
    """
    key = []
    number = -1
    for byte in name:
        if byte in DIGITS:
            number = (0 if number < 0 else number * 10) + byte - 48
            continue
        if number >= 0:
            key += [NUMBER, _wrap(number)]
            number = -1
        key.append(byte - 256 if signed and byte > 127 else byte)
    if number >= 0:
        key += [NUMBER, _wrap(number)]
    key.append(0)
    return tuple(key)


def _wrap(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


class _Keys:
    """Order keys of a cache's records, made when they are asked for."""

    __slots__ = ("_cache", "_keys", "_signed")

    def __init__(self, cache: Cache, *, signed: bool = True) -> None:
        self._cache = cache
        self._keys: dict[int, tuple[int, ...]] = {}
        self._signed = signed

    def key(self, index: int) -> tuple[int, ...]:
        """Return the key of a record.

        Raises:
            LdCacheError: its name is longer than that of any file.
        """
        offset = self._cache.records[index][1]  # by name: many records may share a long one
        key = self._keys.get(offset)
        if key is None:
            name = self._cache.raw(offset)
            if len(name) > NAME_LIMIT:
                raise LdCacheError(f"ld.so.cache has a library name of {len(name)} bytes")
            key = self._keys[offset] = order_key(name, signed=self._signed)
        return key

    def bisect(self, wanted: tuple[int, ...]) -> int:
        """Return the first index whose name is not above wanted; the file's order descends."""
        low, high = 0, len(self._cache.records)
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) > wanted:
                low = middle + 1
            else:
                high = middle
        return low


def merge(
    data: bytes | None,
    add: Iterable[tuple[str, str]],
    *,
    machine: str,
    drop_dirs: Sequence[str] = (),
) -> bytes:
    """Return a cache that has the libraries to add before all others of the same name.

    Among equal names the first one given comes first. Merging twice is merging once.

    Args:
        data: the cache as it is; None makes a new one of nothing but the added libraries.
        add: (name, path) of each library.
        machine: whose dynamic linker is to find them: x86_64, aarch64, i386.
        drop_dirs: directories whose entries are to go.

    Raises:
        LdCacheError: the cache is damaged or of an unknown format, or the machine is unknown.
    """
    if machine not in FLAGS:
        raise LdCacheError(f"no ld.so.cache is known for machine {machine!r}")
    cache = Cache(HEADER, [], b"") if data is None else parse(data)
    merger = _Merger(cache, FLAGS[machine], signed=machine != "aarch64")
    merger.drop(drop_dirs)
    for name, path in dict.fromkeys(add):
        merger.add(encode(name), encode(path))
    records = merger.merged()
    if data is not None and not merger.tail and records == cache.records:
        return data
    return merger.render(records)


class _Merger:
    """One merge: what goes, what comes and where."""

    __slots__ = ("_added", "_cache", "_dropped", "_flags", "_keys", "_offsets", "_signed", "tail")

    def __init__(self, cache: Cache, flags: int, *, signed: bool) -> None:
        self._cache = cache
        self._flags = flags
        self._signed = signed
        self._keys = _Keys(cache, signed=signed)
        self._dropped: set[int] = set()
        self._added: dict[int, list[tuple[tuple[int, ...], Record]]] = {}
        self.tail = bytearray()
        self._offsets: dict[bytes, int] = {}

    def drop(self, folders: Sequence[str]) -> None:
        """Drop all entries of some directories."""
        if not folders:
            return
        wanted = {encode(f.rstrip("/")) for f in folders}
        for index, record in enumerate(self._cache.records):
            if self._cache.raw(record[2]).rpartition(b"/")[0] in wanted:
                self._dropped.add(index)

    def add(self, name: bytes, path: bytes) -> None:
        """Place one library; an identical entry that is there is moved, not doubled.

        Raises:
            LdCacheError: the cache has names that no ldconfig writes.
        """
        cache = self._cache
        key = order_key(name, signed=self._signed)
        place = index = self._keys.bisect(key)
        name_at = path_at = -1
        while index < len(cache.records) and self._keys.key(index) == key:
            if index - place >= SAME_LIMIT:
                raise LdCacheError(f"ld.so.cache has more than {SAME_LIMIT} libraries of one name")
            flags, old_name, old_path, _, hwcap = cache.records[index]
            same = flags == self._flags and not hwcap and cache.raw(old_path) == path
            if same and cache.raw(old_name) == name:
                self._dropped.add(index)
                name_at, path_at = old_name, old_path
            index += 1
        if path_at < 0:
            path_at = self._offset(path)
            name_at = self._offset(name)
            if path.endswith(b"/" + name):
                name_at = path_at + len(path) - len(name)
        record = (self._flags, name_at, path_at, 0, 0)
        self._added.setdefault(place, []).append((key, record))

    def _offset(self, text: bytes) -> int:
        """Return where a new string will stand, counted as the old strings are."""
        offset = self._offsets.get(text)
        if offset is None:
            offset = self._cache.base + len(self._cache.strings) + len(self.tail)
            self._offsets[text] = offset
            self.tail += text + b"\0"
        return offset

    def merged(self) -> list[Record]:
        """Return all records in their order; new ones before old ones of the same name."""
        merged: list[Record] = []
        done = 0
        old = self._cache.records
        for place in sorted(self._added):
            merged += self._kept(done, place)
            new = self._added[place]
            new.sort(key=lambda added: added[0], reverse=True)  # stable: first given stays first
            merged += [record for _, record in new]
            done = place
        return merged + self._kept(done, len(old))

    def _kept(self, start: int, end: int) -> list[Record]:
        records = self._cache.records[start:end]
        if not self._dropped:
            return records
        return [r for i, r in enumerate(records, start) if i not in self._dropped]

    def render(self, records: list[Record]) -> bytes:
        """Return the file of some records."""
        from _struct import pack

        cache = self._cache
        shift = HEADER + len(records) * ENTRY - cache.base
        strings = cache.strings + bytes(self.tail)
        fields: list[int] = []
        for flags, name, path, osversion, hwcap in records:
            fields += (flags, name + shift, path + shift, osversion, hwcap)
        body = pack("<" + ENTRY_LAYOUT * len(records), *fields) + strings
        at = HEADER + len(body)
        extension = b""
        if cache.extended:
            body += bytes(-at % 4)
            extension = _render_extension(cache, HEADER + len(body), shift)
            at = HEADER + len(body)
        head = pack(
            "<20sIIB3xI12x", MAGIC, len(records), len(strings), ENDIAN_LITTLE,
            at if extension else 0,
        )  # fmt: skip
        return head + body + extension


def _render_extension(cache: Cache, at: int, shift: int) -> bytes:
    from _struct import pack

    contents = []
    if cache.generator is not None:
        contents.append((TAG_GENERATOR, cache.generator))
    if cache.hwcaps:
        moved = [offset + shift for offset in cache.hwcaps]
        contents.append((TAG_HWCAPS, pack(f"<{len(moved)}I", *moved)))
    start = at + EXTENSION_HEADER + SECTION * len(contents)
    table = pack("<II", EXTENSION_MAGIC, len(contents))
    tail = b""
    for tag, content in contents:
        tail += bytes(-(start + len(tail)) % 4)
        table += pack("<IIII", tag, 0, start + len(tail), len(content))
        tail += content
    return table + tail
