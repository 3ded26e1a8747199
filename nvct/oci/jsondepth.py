# SPDX-License-Identifier: Apache-2.0
"""Limits the nesting of a JSON text before the C scanner recurses into it.

Hot. CPython's own limit (10,000 levels in 3.12 and 3.13) assumes a stack of 8 MiB; with a
RLIMIT_STACK of 256 KiB the runtime would die of SIGSEGV.
"""

from __future__ import annotations

from nvct.errors import DocumentError

LIMIT = 200
"""Nested arrays and objects. config.json of runc and Docker has less than 10 levels."""
OTHERS = bytes([code for code in range(256) if code not in b"[]{}"])
STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_depth(text: str, source: str) -> None:
    """Refuse a text with more than LIMIT levels; the syntax is not checked.

    Raises:
        DocumentError: the text has more levels, before its first syntax error.
    """
    if text.count("[") + text.count("{") <= LIMIT:
        return
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(text.split('"')[::2])  # of strings
    depth = 0
    for code in outside.encode("utf-8", "surrogatepass").translate(None, OTHERS):
        depth += STEP[code]
        if depth > LIMIT:
            raise DocumentError(f"{source} is not JSON: it is nested too deeply")
