# SPDX-License-Identifier: Apache-2.0
"""Make the program of its seed: image.py SEED OUT IMAGE IMAGE DIGEST.

Each image is the memory of one run of the seed, from the first variable on (main.c). The last
segment of the program that the kernel maps, its variables, becomes the image, with room for the
heap behind it. Contract: the same seed gives the same bytes. What two runs do not have in common
is of a process, such as its id, the address of its stack and the stack's canary: all of it is the
C library's, which sets it at each start, and it is zero here. The digest of the hot side
stands at the very end of the file.
"""

from __future__ import annotations

import sys
from struct import pack_into, unpack_from

HEAP = 8 << 20
"""As in malloc.h."""
WORD = 8
MOST = 12
"""Words that may differ: musl 1.2 has 7, in environ, __libc, builtin_tls and the like."""
PT_LOAD = 1
PF_W = 2
EHDR_PHOFF, EHDR_SHOFF, EHDR_PHENTSIZE, EHDR_SHENTSIZE = 32, 40, 54, 58
"""elf(5): offsets of fields in the header of a 64-bit file."""


def common(one: bytes, other: bytes) -> bytes:
    """Return an image with zeros where two differ.

    Raises:
        SystemExit: they differ in more than what a process has of its own.
    """
    made = bytearray(one)
    places = [
        at for at in range(0, len(one), WORD) if one[at : at + WORD] != other[at : at + WORD]
    ]
    if len(one) != len(other) or len(places) > MOST:
        raise SystemExit(f"image.py: two runs of the seed differ in {len(places)} words")
    for at in places:
        made[at : at + WORD] = bytes(WORD)
    return bytes(made)


def program(seed: bytes, image: bytes) -> bytes:
    """Return the seed with an image for its variables.

    Raises:
        SystemExit: the seed is not linked as it has to be.
    """
    made = bytearray(seed)
    (first,) = unpack_from("<Q", seed, EHDR_PHOFF)
    size, count = unpack_from("<HH", seed, EHDR_PHENTSIZE)
    loaded = []
    for at in range(first, first + count * size, size):
        kind, flags, offset, address = unpack_from("<IIQQ", seed, at)
        if kind == PT_LOAD:
            loaded.append((address, offset, flags, at))
    address, offset, flags, at = max(loaded)
    if [part[2] & PF_W for part in sorted(loaded)] != [0] * (len(loaded) - 1) + [PF_W]:
        raise SystemExit("image.py: the variables are not the last segment of the seed")
    (room,) = unpack_from("<Q", seed, at + 40)
    if len(image) <= room:
        raise SystemExit("image.py: the seed did not get as far as the image")
    del made[offset:]
    made += image
    pack_into("<QQ", made, at + 32, len(image), len(image) + HEAP)
    pack_into("<Q", made, EHDR_SHOFF, 0)  # the sections stood behind
    pack_into("<HHH", made, EHDR_SHENTSIZE, 0, 0, 0)
    return bytes(made)


def main(seed: str, out: str, one: str, other: str, digest: str) -> None:
    """Write the program."""
    data = []
    for path in (seed, one, other):
        with open(path, "rb") as file:
            data.append(file.read())
    with open(out, "wb") as file:
        file.write(program(data[0], common(data[1], data[2])) + digest.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
