# SPDX-License-Identifier: Apache-2.0
"""Mutations of bytes: the usual ones, plus words that the target's grammar knows."""

from collections.abc import Sequence
from random import Random

MOST = 4096
"""No input grows longer: large ones are tests/fuzz/test_size.py's."""
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
SNIPPETS = (
    b"\0", b"\n", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\u0000", b"\\ud800",
    b"\\u004e", b"\xe2\x80\xae", b"\x1b[2J", b"..", b"/", b",", b"=", b":", b" ", b'"', b"%s", b"-1",
)  # fmt: skip


def mutate(data: bytes, other: bytes, words: Sequence[bytes], chosen: Random) -> bytes:
    """Return data changed in one to six places.

    Args:
        data: what to change.
        other: another input, to take a part of.
        words: what the grammar knows.
        chosen: where chance comes from.
    """
    made = bytearray(data)
    for _ in range(1 + int(chosen.random() ** 2 * 6)):
        _change(made, other, words, chosen)
    return bytes(made[:MOST])


def _change(made: bytearray, other: bytes, words: Sequence[bytes], chosen: Random) -> None:
    random = chosen.random
    size = len(made)
    at = int(random() * (size + 1))
    kind = int(random() * 10)
    if kind == 0 and size:
        made[at % size] ^= 1 << int(random() * 8)
    elif kind == 1 and size:
        made[at % size] = int(random() * 256)
    elif kind == 2:
        del made[at : at + 1 + int(random() ** 3 * 40)]
    elif kind == 3:
        end = at + 1 + int(random() ** 2 * 60)
        where = int(random() * (size + 1))
        made[where:where] = made[at:end]  # a part of itself, once more
    elif kind == 4:
        end = at + 1 + int(random() ** 2 * 60)
        where = int(random() * (size + 1))
        part = made[at:end]
        made[where : where + len(part)] = part
    elif kind == 5 and other:
        start = int(random() * len(other))
        made[at:at] = other[start : start + 1 + int(random() ** 2 * 80)]
    elif kind == 6:
        made[at:at] = SNIPPETS[int(random() * len(SNIPPETS))]
    elif kind == 7 and size > 8:
        width = (1, 2, 4, 8)[int(random() * 4)]
        value = EDGES[int(random() * len(EDGES))] + int(random() * 3) - 1
        at = int(random() * (size - width + 1))
        made[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    elif words:
        word = words[int(random() * len(words))]
        end = at + (len(word) if random() < 0.4 else 0)  # over what stands there, or between
        made[at:end] = word
