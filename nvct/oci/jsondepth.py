# SPDX-License-Identifier: Apache-2.0
"""How deeply a JSON text is nested, before the C scanner recurses into it.

Hot. CPython's own limit (10,000 levels in 3.12 and 3.13) is for a stack of 8 MiB; an engine whose
RLIMIT_STACK is 256 KiB would see the runtime die of SIGSEGV.
"""

from __future__ import annotations

from nvct.errors import DocumentError

LIMIT = 200
"""Arrays and objects in one another. config.json of runc's and Docker's has less than 10."""
OTHERS = bytes([code for code in range(256) if code not in b"[]{}"])
STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_depth(text: str, source: str) -> None:
    """Refuse a text that is nested more deeply than LIMIT; whether it is JSON is not looked at.

    Raises:
        DocumentError: it is, in the part before its first error.
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
