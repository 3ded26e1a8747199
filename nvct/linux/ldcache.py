# SPDX-License-Identifier: Apache-2.0
"""Parses ld.so.cache and merges libraries into it, so that no ldconfig has to run.

Contract: bytes in, bytes out; no file is opened. Reads glibc's format 1.1, little endian, alone or
after the old libc5 table (``ldconfig -c compat``). Writes only format 1.1, which every glibc since
2.2 reads. Keeps the generator and glibc-hwcaps extensions (glibc 2.33). An unknown format or
extension is an error.
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

ELF_LIBC6 = 0x0003
FLAGS = {"x86_64": ELF_LIBC6 | 0x0300, "aarch64": ELF_LIBC6 | 0x0A00, "i386": ELF_LIBC6}
"""The entry flags that a machine's dynamic linker accepts (glibc, _DL_CACHE_DEFAULT_ID)."""

LIMIT = 16 << 20
RECORD_LIMIT, FIND_LIMIT = 1 << 16, 64  # strings can overlap: a small file can hold much text
STRING_LIMIT = 4096  # PATH_MAX
NAME_LIMIT = 255  # NAME_MAX; an order key takes 30 times the memory, and 80 ns per byte
SAME_LIMIT = 1024
"""Most entries whose names have equal order keys, such as `libx.so.1` and `libx.so.0001`."""
DIGITS = frozenset(b"0123456789")
NUMBER = 1 << 40  # Precedes a number in an order key; greater than every character


class Cache:
    """A parsed cache."""

    __slots__ = ("base", "extended", "generator", "hwcaps", "records", "strings")

    def __init__(self, base: int, records: list[Record], strings: bytes) -> None:
        self.base = base  # the offset of the first byte of `strings`
        # (flags, offset of the name, offset of the path, osversion, hwcap) of each library, in the
        # order of the file
        self.records = records
        self.strings = strings
        self.generator: bytes | None = None
        self.hwcaps: tuple[int, ...] = ()  # offsets of the names of glibc-hwcaps subdirectories
        self.extended = False

    @property
    def entries(self) -> list[Entry]:
        """All libraries as (name, path, flags, osversion, hwcap), in the order of the file."""
        text = self.text
        return [(text(key), text(value), f, o, h) for f, key, value, o, h in self.records]

    def text(self, offset: int) -> str:
        """Return the string at an offset."""
        return self.raw(offset).decode("utf-8", "surrogateescape")

    def raw(self, offset: int) -> bytes:
        """Return the string at an offset, as bytes."""
        start = offset - self.base
        end = self.strings.find(0, start, start + STRING_LIMIT)
        if end < 0:
            raise LdCacheError(f"ld.so.cache has a string longer than {STRING_LIMIT} bytes")
        return self.strings[start:end]

    def find(self, name: str) -> list[str]:
        """Return the paths of a name's first FIND_LIMIT entries, in the order of the file."""
        encoded = encode(name)
        offsets = [r[2] for r in self.records if self.raw(r[1]) == encoded]
        return list(map(self.text, offsets[:FIND_LIMIT]))

    def paths_of(self, words: tuple[bytes, ...], foreign: set[int]) -> list[str]:
        """Return the distinct paths of names that contain a word, except with `foreign` flags."""
        records = [r for r in self.records if any(map(self.raw(r[1]).__contains__, words))]
        return list(dict.fromkeys(self.text(r[2]) for r in records if r[0] not in foreign))


def encode(text: str) -> bytes:
    """Return the bytes of a name or path; LdCacheError if the text contains a NUL."""
    data = text.encode("utf-8", "surrogateescape")
    if 0 in data:
        raise LdCacheError(f"{text!r} is not valid in ld.so.cache: it contains a NUL")
    return data


def parse(data: bytes) -> Cache:
    """Parse an ld.so.cache; LdCacheError if it is damaged or has an unknown format."""
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
        raise LdCacheError(f"ld.so.cache is too short for its {count} libraries")
    records = list(iter_unpack("<" + ENTRY_LAYOUT, data[first : start + base]))
    cache = Cache(base, records, data[start + base : end])
    _check_offsets(cache, [r[1] for r in records])
    _check_offsets(cache, [r[2] for r in records])
    if extension:
        _read_extension(cache, data, extension)
    return cache


def _find_header(data: bytes) -> int:
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
    """Refuse offsets at which the string table has no NUL-terminated string."""
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
    allowed = {TAG_GENERATOR, TAG_HWCAPS}
    for index in range(count):
        tag, flags, start, size = unpack_from("<4I", data, table + index * SECTION)
        if start + size > len(data):
            raise LdCacheError("ld.so.cache has an extension section outside the file")
        if flags or tag not in allowed:
            raise LdCacheError(f"ld.so.cache has an unknown extension section {tag}")
        allowed.remove(tag)
        content = data[start : start + size]
        if tag == TAG_GENERATOR:
            cache.generator = content
        elif size % 4:
            raise LdCacheError(f"ld.so.cache has a damaged glibc-hwcaps section of {size} bytes")
        else:
            cache.hwcaps = unpack_from(f"<{size // 4}I", content, 0)
            _check_offsets(cache, cache.hwcaps)


def order_key(name: bytes, *, signed: bool = True) -> tuple[int, ...]:
    """Return a name's sort key, with the order of the dynamic linker's binary search.

    Numbers compare by value and are greater than every character (glibc, _dl_cache_libcmp). As in
    glibc, they wrap at 32 bits. `signed`: the machine's char is signed (x86: yes, Arm: no).
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


def merge(
    data: bytes | None,  # the current cache; None to make a new one
    add: Iterable[tuple[str, str]],  # (name, path) of each library
    *,
    machine: str,
    drop_dirs: Sequence[str] = (),
) -> bytes:
    """Return a cache with libraries added, each before all others of its name.

    Added libraries of the same name keep their order. Entries in `drop_dirs` are removed. The
    function is idempotent. LdCacheError if the cache is damaged or of an unknown format, or the
    machine is unknown.
    """
    if machine not in FLAGS:
        raise LdCacheError(f"nvct cannot write an ld.so.cache for machine {machine!r}")
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
    """One merge: removed entries, added entries with their positions, order keys of records."""

    __slots__ = ("_added", "_cache", "_dropped", "_flags", "_keys", "_offsets", "_signed", "tail")

    def __init__(self, cache: Cache, flags: int, *, signed: bool) -> None:
        self._cache = cache
        self._flags = flags
        self._signed = signed
        self._keys: dict[int, tuple[int, ...]] = {}
        self._dropped: set[int] = set()
        self._added: dict[int, list[tuple[tuple[int, ...], Record]]] = {}
        self.tail = bytearray()
        self._offsets: dict[bytes, int] = {}

    def _key(self, index: int) -> tuple[int, ...]:
        offset = self._cache.records[index][1]  # many records can share a long name
        key = self._keys.get(offset)
        if key is None:
            name = self._cache.raw(offset)
            if len(name) > NAME_LIMIT:
                raise LdCacheError(f"ld.so.cache has a library name of over {NAME_LIMIT} bytes")
            key = self._keys[offset] = order_key(name, signed=self._signed)
        return key

    def _bisect(self, key: tuple[int, ...]) -> int:
        """Return the first index with a key not greater than `key`; records are descending."""
        low, high = 0, len(self._cache.records)
        while low < high:
            middle = (low + high) // 2
            if self._key(middle) > key:
                low = middle + 1
            else:
                high = middle
        return low

    def drop(self, folders: Sequence[str]) -> None:
        if not folders:
            return
        removed = {encode(f.rstrip("/")) for f in folders}
        for index, record in enumerate(self._cache.records):
            if self._cache.raw(record[2]).rpartition(b"/")[0] in removed:
                self._dropped.add(index)

    def add(self, name: bytes, path: bytes) -> None:
        """Add a library, or move an identical entry; LdCacheError if the cache exceeds a limit."""
        cache = self._cache
        key = order_key(name, signed=self._signed)
        position = index = self._bisect(key)
        name_at = path_at = -1
        while index < len(cache.records) and self._key(index) == key:
            if index - position >= SAME_LIMIT:
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
        self._added.setdefault(position, []).append((key, record))

    def _offset(self, text: bytes) -> int:
        offset = self._offsets.get(text)
        if offset is None:
            offset = self._cache.base + len(self._cache.strings) + len(self.tail)
            self._offsets[text] = offset
            self.tail += text + b"\0"
        return offset

    def merged(self) -> list[Record]:
        """Return all records in order, new records before old records of the same name."""
        merged: list[Record] = []
        start = 0
        records = self._cache.records
        for position in sorted(self._added):
            merged += self._not_dropped(start, position)
            added = self._added[position]
            added.sort(key=lambda entry: entry[0], reverse=True)  # stable
            merged += [record for _, record in added]
            start = position
        return merged + self._not_dropped(start, len(records))

    def _not_dropped(self, start: int, end: int) -> list[Record]:
        records = self._cache.records[start:end]
        if not self._dropped:
            return records
        return [r for i, r in enumerate(records, start) if i not in self._dropped]

    def render(self, records: list[Record]) -> bytes:
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
