# SPDX-License-Identifier: Apache-2.0
"""JetPack's CSV files, which list what a container gets: one `TYPE, PATH` per line.

Contract: lists and patterns only; no file that a list names is read. Patterns have the syntax of
Go's filepath.Match, for which the lists are written: `*` and `?` do not match a slash, `^` negates
a class, and a malformed pattern matches nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Findings
from nvct.host.procfs import list_directory, read_text
from nvct.host.roots import Roots

Kind: TypeAlias = Literal["dev", "dir", "lib", "sym"]

KINDS = ("dev", "dir", "lib", "sym")
FOLDER = "nvidia-container-runtime/host-files-for-container.d"
# JetPack 5 has l4t.csv, JetPack 6 the other two; nvidia-container-toolkit v1.20 reads all three.
BASE_FILES = ("devices.csv", "drivers.csv", "l4t.csv")
MAGIC = re.compile(r"[*?\[\\]")
ITEM = r"(?:\\.|[^\\\-\]])"
TOKEN = re.compile(
    rf"(?P<wild>[*?])|\[(?:(?P<negated>\^)|(?!\^))(?P<items>(?:{ITEM}(?:-{ITEM})?)+)\]"
    r"|\\(?P<literal>.)|(?P<plain>[^\\\[])",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a CSV file.

    Attributes:
        kind: a device node, a directory, a file or a symbolic link.
        path: as written; may be a pattern.
        source: the path of the CSV file.
    """

    kind: Kind
    path: str
    source: str


def list_paths(roots: Roots, options: DiscoveryOptions) -> list[str]:
    """Return the host paths of the CSV files, existing or not."""
    if options.csv_files is not None:
        return list(dict.fromkeys(options.csv_files))
    folder = options.csv_folder or f"{roots.etc}/{FOLDER}"
    if not options.csv_all:
        return [f"{folder}/{name}" for name in BASE_FILES]
    paths = (f"{folder}/{name}" for name in list_directory(folder) if _is_list(name))
    return [path for path in paths if not os.path.isdir(path)]


def read(roots: Roots, options: DiscoveryOptions, findings: Findings) -> list[Entry]:
    """Return the lines of all CSV files, each kind and path once.

    A file that an option names must exist and not be empty; else a warning follows. JetPack's base
    files may be missing. Symbolic links that match an ignore pattern are left out.
    """
    unique: dict[tuple[Kind, str], Entry] = {}
    ignored = [ignore_rule(pattern) for pattern in options.csv_ignore]
    for source in list_paths(roots, options):
        text = read_text(source)
        entries = [] if text is None else parse(text, source, findings)
        if not entries and (text is not None or options.csv_files is not None):
            fault = "cannot be read" if text is None else "names nothing"
            findings.warn(f"the CSV file {source} {fault}")
        for entry in entries:
            if entry.kind == "sym" and any(matches(entry.path) for matches in ignored):
                findings.leave_out(entry.path, "an ignore pattern names it")
            else:
                unique.setdefault((entry.kind, entry.path), entry)
    return list(unique.values())


def parse(text: str, source: str, findings: Findings) -> list[Entry]:
    """Return the lines of one CSV file; a malformed line is skipped with a note."""
    entries = []
    # Only newlines end a line: a path may contain the other separators of str.splitlines().
    for number, line in enumerate(text.split("\n"), 1):
        kind, _, path = (part.strip() for part in line.partition(","))
        if kind in KINDS and path and "\0" not in path:
            entries.append(Entry(kind=cast("Kind", kind), path=path, source=source))
        elif kind and not kind.startswith("#"):
            findings.note(f"line {number} of {source} is no TYPE, PATH: {line.strip()[:60]!r}")
    return entries


def ignore_rule(pattern: str) -> Callable[[str], bool]:
    """Return a predicate for paths: `**/X` matches the last component, X the whole path."""
    last_part = pattern.startswith("**/")
    compiled = compile_pattern(pattern.removeprefix("**/"))

    def matches(path: str) -> bool:
        name = os.path.basename(path) if last_part else path
        return compiled is not None and compiled.fullmatch(name) is not None

    return matches


def expand(pattern: str, names: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """Yield the paths that match a pattern, sorted; a path without magic yields itself.

    Args:
        pattern: an absolute path.
        names: returns the sorted names in a directory, [] if there is none.
    """
    if not MAGIC.search(pattern):
        yield pattern
        return
    bases = [""]
    for part in pattern.strip("/").split("/"):
        if not MAGIC.search(part):
            bases = [f"{base}/{part}" for base in bases]
        elif compiled := compile_pattern(part):
            bases = [
                f"{base}/{name}"
                for base in bases
                for name in names(base or "/")
                if compiled.fullmatch(name)
            ]
        else:
            return
    yield from bases


def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern of Go's filepath.Match as a regular expression, None if malformed."""
    out, at = [], 0
    while at < len(pattern):
        token = TOKEN.match(pattern, at)
        if token is None:
            return None
        out.append(_translate(token))
        at = token.end()
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error:  # a range whose end is before its start
        return None


def _translate(token: re.Match[str]) -> str:
    if token["wild"]:
        return "[^/]*" if token["wild"] == "*" else "[^/]"
    if not token["items"]:
        return re.escape(token["literal"] or token["plain"])
    parts = re.findall(r"\\.|.", token["items"], re.DOTALL)
    # A bare hyphen is part of a range: TOKEN permits it nowhere else.
    inner = "".join(part if part == "-" else re.escape(part[-1]) for part in parts)
    return f"[{token['negated'] or ''}{inner}]"


def _is_list(name: str) -> bool:
    return name != ".csv" and name.lower().endswith(".csv")
