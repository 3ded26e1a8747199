# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of binary files that an image brings: ld.so.cache, and libraries."""

import struct

from nvct.linux import elf, ldcache
from nvct_sim.elf_writer import shared_object
from tests.fuzz.outcome import written_by_us

ADD = (("libcuda.so.1", "/n/libcuda.so.1"), ("libnvidia-ml.so.1", "/n/libnvidia-ml.so.1"))
NOTE = struct.pack("<III", 4, 4, 1) + b"abc\0" + b"wxyz"
CACHE_WORDS = (
    ldcache.MAGIC, ldcache.OLD_MAGIC, b"\0", b"libcuda.so.1\0", b"libcuda.so.01\0", b"libc.so.6\0",
    struct.pack("<I", ldcache.EXTENSION_MAGIC), struct.pack("<I", 0x303), struct.pack("<Q", 1 << 62),
    b"/n/", b"/usr/lib/", struct.pack("<I", 0xFFFFFFFF), struct.pack("<I", 48),
)  # fmt: skip
ELF_WORDS = (
    b"\x7fELF\2\1\1", b"\x7fELF\1\2\1", struct.pack("<II", 2, 6), struct.pack("<II", 1, 5),
    struct.pack("<QQ", 1, 1), struct.pack("<QQ", 14, 1), struct.pack("<QQ", 5, 0x200),
    struct.pack("<Q", 2**63), struct.pack("<Q", 2**64 - 1), struct.pack("<I", 7), b".note.x\0", b"\0" * 8,
)  # fmt: skip


def cache_seeds() -> list[bytes]:
    """Return caches of both formats, with and without the extension."""
    old = [(f"lib{n}.so.{n}", f"/usr/lib/lib{n}.so.{n}") for n in ("a", "1", "cuda", "z")]
    plain = ldcache.merge(None, [*old, ("libcuda.so.1", "/x/libcuda.so.1")], machine="x86_64")
    table = ldcache.OLD_MAGIC.ljust(12, b"\0") + struct.pack("<I", 1) + bytes(12) + bytes(4)
    return [plain, ldcache.merge(None, [], machine="i386"), table + plain, extended(plain)]


def extended(plain: bytes) -> bytes:
    """Return a cache with a generator and one subdirectory of glibc-hwcaps."""
    count = struct.unpack_from("<I", plain, len(ldcache.MAGIC))[0]
    at = len(plain) + -len(plain) % 4
    name = ldcache.HEADER + count * ldcache.ENTRY
    head = struct.pack("<II", ldcache.EXTENSION_MAGIC, 2)
    first = at + len(head) + 2 * ldcache.SECTION
    sections = struct.pack("<4I", 0, 0, first, 4) + struct.pack("<4I", 1, 0, first + 4, 4)
    whole = bytearray(plain.ljust(at, b"\0") + head + sections + b"test" + struct.pack("<I", name))
    struct.pack_into("<I", whole, len(ldcache.MAGIC) + 12, at)
    return bytes(whole)


def run_cache(data: bytes) -> bool:
    """Parse a cache and merge into it; the added libraries come first, no other is made up."""
    cache = ldcache.parse(data)
    before = {(cache.raw(r[1]), cache.raw(r[2])) for r in cache.records[:64]}
    merged = ldcache.merge(data, ADD, machine="x86_64", drop_dirs=["/x"])
    with written_by_us():
        made = ldcache.parse(merged)
        twice = ldcache.merge(merged, ADD, machine="x86_64")
    for name, path in ADD:
        assert made.find(name)[:1] == [path] or not _sorted(cache)
        assert path in [made.text(r[2]) for r in made.records if made.text(r[1]) == name]
    if len(cache.records) <= 64:
        added = {(n.encode(), p.encode()) for n, p in ADD}
        assert {(made.raw(r[1]), made.raw(r[2])) for r in made.records} <= before | added
    assert twice == merged or not _sorted(cache)
    if cache.extended:
        assert made.generator == cache.generator
        assert len(made.hwcaps) == len(cache.hwcaps)
    return True


def _sorted(cache: ldcache.Cache) -> bool:
    """Tell whether a cache has the order that the linker's bisection needs."""
    keys = [ldcache.order_key(cache.raw(r[1])) for r in cache.records]
    return all(keys[i] >= keys[i + 1] for i in range(len(keys) - 1))


def elf_seeds() -> list[bytes]:
    """Return libraries of three machines."""
    return [
        shared_object(
            machine,
            soname="libcuda.so.1",
            needed=["libc.so.6", "libm.so.6"],
            symbols={"x": b"1"},
            sections={".note.x": NOTE, ".note.y": NOTE * 3},
        )
        for machine in ("x86_64", "aarch64", "i386")
    ]


def run_elf(data: bytes) -> bool:
    """Read a library; every name is one that stands in the file."""
    found = elf.Elf(data)
    names = [*found.needed, *([found.soname] if found.soname is not None else [])]
    for name in names:
        assert name.encode("utf-8", "surrogateescape") + b"\0" in data
        assert len(name.encode("utf-8", "surrogateescape")) < elf.NAME_LIMIT
    for section in (".note.x", ".note.y"):
        for _, _, description in found.notes(section):
            assert description in data
    return True
