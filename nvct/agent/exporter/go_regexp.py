# SPDX-License-Identifier: Apache-2.0
"""Translates Go's regular expressions for Python's `re`, to search in the names of labels.

An expression that Go refuses is refused, because expressions are written for dcgm-exporter. Names
of labels are ASCII, so Unicode's classes have only their ASCII characters here.
"""

from __future__ import annotations

import re
import string
import unicodedata

TOKEN = re.compile(
    r"\\Q(?P<literal>.*?)(?:\\E|\Z)"
    r"|\\(?P<sign>[pP])(?:\{(?P<not>\^?)(?P<long>\w+)\}|(?P<short>\w))"
    r"|\\x\{(?P<code>[0-9A-Fa-f]+)\}"
    r"|\[:(?P<unlike>\^?)(?P<posix>\w+):\]"
    r"|\(\?(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<colon>[:)])"
    r"|\(\?P?<(?P<name>\w+)>"
    r"|(?P<other>\\.|.)",
    re.DOTALL,
)
ASCII = [chr(code) for code in range(128)]
POSIX = {
    "alnum": string.ascii_letters + string.digits, "alpha": string.ascii_letters,
    "ascii": "".join(ASCII), "blank": " \t", "cntrl": "".join(map(chr, (*range(32), 127))),
    "digit": string.digits, "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase, "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation, "space": string.whitespace, "upper": string.ascii_uppercase,
    "word": f"{string.ascii_letters}{string.digits}_", "xdigit": string.hexdigits,
}  # fmt: skip
SCRIPTS = {"Latin": string.ascii_letters}
"""Unicode's scripts with ASCII characters; all others except Common have none."""
NOT_GO = re.compile(r"\\[1-9ZuUN]|\(\?(?![imsU-]|P?<\w+>|:)|(?<!\\)[*+?}][*+]")
"""Syntax that Python reads and Go refuses: backreferences, lookaround, possessive quantifiers."""
NOTHING = "(?!)"


def compiled(text: str) -> re.Pattern[str]:
    """Return an expression of Go for Python's `re`; re.error if it is malformed."""
    if found := NOT_GO.search(text):
        raise re.error(f"Go does not know {found[0]!r}")
    return re.compile(_translated(text), re.ASCII)


def _translated(text: str) -> str:
    out: list[str] = []
    scopes: list[list[str]] = [[]]  # flags that hold to the end of each group
    in_class = False
    for match in TOKEN.finditer(text):
        other = match["other"]
        if in_class:
            in_class = other != "]" or (out[-1] in ("[", "[^"))
            members = _members(match)
            out.append(match[0] if members is None else _listed(members))
        elif other == "[":
            in_class = True
            out.append("[")
        elif match["flags"] is not None:
            flags = match["flags"].replace("U", "")
            opening = f"(?{flags}:" if flags.strip("-") else "(?:"
            if match["colon"] == ":":
                scopes.append([])
            else:
                scopes[-1].append(opening)
            out.append(opening)
        elif other == "|":  # the flags hold in the next branch too
            out.append(f"{')' * len(scopes[-1])}|{''.join(scopes[-1])}")
        elif other == ")":
            if len(scopes) == 1:
                raise re.error("unbalanced parenthesis")
            out.append(")" * (len(scopes.pop()) + 1))
        else:
            if other == "(" or match["name"] is not None:
                scopes.append([])
            out.append(_outside(match))
        if in_class and out[-1] == "^" and out[-2] == "[":
            out[-2:] = ["[^"]
    return "".join(out) + ")" * len(scopes[0])


def _outside(match: re.Match[str]) -> str:
    if match["name"] is not None:
        return f"(?P<{match['name']}>"
    if match["literal"] is not None:
        return re.escape(match["literal"])
    members = _members(match)
    if members is not None and match["posix"] is None:
        return f"[{_listed(members)}]" if members else NOTHING
    return r"\Z" if match["other"] == r"\z" else match[0]


def _members(match: re.Match[str]) -> str | None:
    """Return the characters of a class that only Go has, None for another token."""
    if match["code"] is not None:
        return chr(int(match["code"], 16))
    if match["posix"] is not None:
        if match["posix"] not in POSIX:
            raise re.error(f"unknown class {match[0]}")
        found, is_not = POSIX[match["posix"]], match["unlike"] == "^"
    elif match["sign"] is not None:
        found = _of_unicode(match["long"] or match["short"])
        is_not = (match["sign"] == "P") != (match["not"] == "^")
    else:
        return None
    return "".join(c for c in ASCII if (c in found) != is_not)


def _of_unicode(name: str) -> str:
    if len(name) <= 2:  # a category
        return "".join(c for c in ASCII if unicodedata.category(c).startswith(name))
    if name == "Any":
        return "".join(ASCII)
    if name == "Common":
        return "".join(c for c in ASCII if c not in string.ascii_letters)
    return SCRIPTS.get(name, "")


def _listed(members: str) -> str:
    """Return characters to be put in brackets; for none, one that no label's name has."""
    return re.escape(members) or r"\x00"
