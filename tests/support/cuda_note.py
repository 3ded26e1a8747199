# SPDX-License-Identifier: Apache-2.0
"""The ELF note of a CUDA compatibility libcuda, as in NVIDIA's libraries.

The spelling is that of libcuda 575.57.08 and 590.44.01: `format`, `CUDA version`, `driver` and
`device`. Orin's 13.2.1 has no driver list, and its section is two bytes shorter than its note.
"""

import json
import struct

NOTE_SECTION = ".note.cuda.fwd_compatibility"
NAME = b"NVIDIA Corporation\0"


def raw_note(text: str, *, short: int = 0) -> bytes:
    """Return a note with this description, without its last `short` bytes."""
    description = text.encode() + b"\0"
    head = struct.pack("<III", len(NAME), len(description), 0)
    data = head + NAME.ljust(20, b"\0") + description
    return data[: len(data) - short]


def note(cuda: str, drivers: object = None, *, short: int = 0) -> bytes:
    """Return the note of a CUDA version, for hosts with drivers of these branches."""
    content: dict[str, object] = {"format": 1, "CUDA version": cuda}
    if drivers is not None:
        content |= {"driver": drivers, "device": [1, 2, 7, 8]}
    return raw_note(json.dumps(content, separators=(",", ":")), short=short)
