# SPDX-License-Identifier: Apache-2.0
"""JetPack's CSV files, `TYPE, PATH` in each line, and the files and links that they name.

Contract: a file is mounted at its real path. Every link on the way from the listed name to the
file is made in the container with the link text of the host. Links are resolved inside the driver
root. nvidia-container-toolkit v1.20 resolves them against the host and passes host paths to its
hook, which are wrong in a container if the driver root is not /. Patterns are those of
`go_pattern`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from nvct.errors import NvctError
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver.tree import Tree, TreeFile
from nvct.host.go_pattern import expand, matches
from nvct.host.model import DriverFile, FileKind, Findings, Link
from nvct.host.procfs import list_directory, read_text
from nvct.host.roots import Roots, join

Kind: TypeAlias = Literal["dev", "dir", "lib", "sym"]

KINDS = ("dev", "dir", "lib", "sym")
FOLDER = "nvidia-container-runtime/host-files-for-container.d"
# JetPack 5 has l4t.csv, JetPack 6 the other two; nvidia-container-toolkit v1.20 reads all three.
BASE_FILES = ("devices.csv", "drivers.csv", "l4t.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a CSV file."""

    kind: Kind
    path: str
    source: str

    @property
    def reason(self) -> str:
        """The reason for a file or node that the line names."""
        return f"{os.path.basename(self.source)} names it"


def list_paths(roots: Roots, options: DiscoveryOptions) -> list[str]:
    """Return the host paths of the CSV files, existing or not."""
    if options.csv_files is not None:
        return list(dict.fromkeys(options.csv_files))
    folder = options.csv_folder or f"{roots.etc}/{FOLDER}"
    if not options.csv_all:
        return [f"{folder}/{name}" for name in BASE_FILES]
    names = (name for name in list_directory(folder) if name.lower().endswith(".csv"))
    paths = (f"{folder}/{name}" for name in names if name != ".csv")
    return [path for path in paths if not os.path.isdir(path)]


def read(roots: Roots, options: DiscoveryOptions, findings: Findings) -> list[Entry]:
    """Return the lines of all CSV files, each kind and path once.

    Warns of a file without entries, and of a missing file that an option names; JetPack's base
    files can be missing. Symbolic links that match an ignore pattern are left out.
    """
    unique: dict[tuple[Kind, str], Entry] = {}
    ignored = [ignore_rule(pattern) for pattern in options.csv_ignore]
    for source in list_paths(roots, options):
        text = read_text(source)
        entries = [] if text is None else parse(text, source, findings)
        if not entries and (text is not None or options.csv_files is not None):
            fault = "cannot be read" if text is None else "has no entries"
            findings.warn(f"the CSV file {source} {fault}")
        for entry in entries:
            if entry.kind == "sym" and any(matches(entry.path) for matches in ignored):
                findings.leave_out(entry.path, "it matches an ignore pattern")
            else:
                unique.setdefault((entry.kind, entry.path), entry)
    return list(unique.values())


def parse(text: str, source: str, findings: Findings) -> list[Entry]:
    """Return the lines of one CSV file; a malformed line is skipped with a note."""
    entries = []
    # Only newlines end a line: a path can contain the other separators of str.splitlines().
    for number, line in enumerate(text.split("\n"), 1):
        kind, _, path = (part.strip() for part in line.partition(","))
        if kind in KINDS and path and "\0" not in path:
            entries.append(Entry(kind=cast("Kind", kind), path=path, source=source))
        elif kind and not kind.startswith("#"):
            findings.note(f"line {number} of {source} is not TYPE, PATH: {line.strip()[:60]!r}")
    return entries


def ignore_rule(pattern: str) -> Callable[[str], bool]:
    """Return a predicate for paths: `**/X` matches the last component, X the whole path."""
    if pattern.startswith("**/"):
        name_pattern = pattern.removeprefix("**/")
        return lambda path: matches(os.path.basename(path), name_pattern)
    return lambda path: matches(path, pattern)


LIBRARY = re.compile(r"(lib.+?\.so)(?:\..*)?", re.DOTALL)
LINK_LIMIT = 40  # the kernel's limit
RELEASE = "nv_tegra_release"


class Mounts:
    """Collects the files and links that CSV files name, sorted by container path."""

    def __init__(self, tree: Tree, roots: Roots, findings: Findings) -> None:
        self._tree = tree
        self._roots = roots
        self._findings = findings
        self._files: dict[str, DriverFile] = {}
        # Container path of a link -> (link text, path of its file, "" for a directory).
        self._links: dict[str, tuple[str, str]] = {}

    def take(self, entry: Entry, search_paths: Sequence[str]) -> None:
        """Add the files of one line; a line without a file is left out with a reason."""
        bases = ["/"] if entry.kind == "dir" else [*search_paths, "/"]
        results = [
            self._take_path(entry, path)
            for base in dict.fromkeys(bases)
            for path in expand(join(base, entry.path), self._tree.names)
        ]
        if not any(results):
            self._findings.leave_out(entry.path, f"{entry.reason}, but the host does not have it")

    def take_release(self) -> None:
        """Add the file by which programs detect the board and the release."""
        path = f"{self._roots.etc}/{RELEASE}"
        if os.path.isfile(path):
            self._files[f"/etc/{RELEASE}"] = DriverFile(
                host_path=path,
                container_path=f"/etc/{RELEASE}",
                reason="programs read the release of Jetson Linux from it",
                kind="config",
            )

    def files(self) -> list[DriverFile]:
        """Return the files, each with the links to it."""
        self._add_library_links()
        links: dict[str, list[Link]] = {}
        for path, (text, target) in sorted(self._links.items()):
            links.setdefault(target, []).append(Link(target=text, path=path))
        return [
            replace(file, links=tuple(links.get(path, ())))
            for path, file in sorted(self._files.items())
        ]

    def links(self) -> tuple[Link, ...]:
        """Return the links to directories."""
        directory_links = (
            (path, text) for path, (text, target) in self._links.items() if not target
        )
        return tuple(Link(target=text, path=path) for path, text in sorted(directory_links))

    def _take_path(self, entry: Entry, path: str) -> bool:
        if entry.kind == "dir":
            return self._take_directory(entry, path)
        target = self._tree.file(path)
        chain = list(self._chain(path))
        if target is None and not (chain and self._tree.directory(path)):
            return False
        for link, text in chain:
            self._links.setdefault(link, (text, target.real if target else ""))
        if target is not None and target.real not in self._files:
            self._files[target.real] = self._file(entry, target)
        return True

    def _take_directory(self, entry: Entry, path: str) -> bool:
        # A directory in /dev is always below the dev root, not below the driver root.
        in_dev = path.startswith("/dev/")
        host_path = join(self._roots.dev_root or "/", path) if in_dev else self._host_path(path)
        if not os.path.isdir(host_path):
            return False
        self._files[path] = DriverFile(
            host_path=host_path, container_path=path, reason=entry.reason, kind="directory"
        )
        return True

    def _host_path(self, path: str) -> str:
        real = self._tree.directory(path)
        return self._tree.host_path(path if real is None else real)

    def _chain(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield (path, link text) of each link between a name and its file."""
        for _ in range(LINK_LIMIT):
            folder = self._tree.directory(os.path.dirname(path))
            if folder is None:
                return
            path = join(folder, os.path.basename(path))
            text = self._readlink(path)
            if text is None:
                return
            yield path, text
            path = join("/", text if text.startswith("/") else f"{folder}/{text}")

    def _readlink(self, path: str) -> str | None:
        try:
            return self._tree.root.readlink(path)
        except (OSError, NvctError):
            return None

    def _file(self, entry: Entry, target: TreeFile) -> DriverFile:
        name = os.path.basename(target.real)
        kind = _kind(target, name)
        machine = soname = ""
        if kind == "library":
            machine, soname = self._tree.machine_and_soname(target.real, self._findings)
        return DriverFile(
            host_path=self._tree.host_path(target.real),
            container_path=target.real,
            reason=entry.reason,
            kind=kind,
            machine=machine,
            soname="" if "/" in soname else soname,
        )

    def _add_library_links(self) -> None:
        """Add links for the names that the dynamic linker and programs look for.

        nvidia-container-toolkit v1.20 does so only for names like libx.so.1.2, and only if the
        host has the link.
        """
        for real, file in list(self._files.items()):
            match = LIBRARY.fullmatch(os.path.basename(real))
            if file.kind != "library" or match is None:
                continue
            if file.soname:
                self._add_link(real, file.soname, os.path.basename(real))
            stem = match[1]
            # Programs dlopen libcuda.so without a version.
            if stem == "libcuda.so" or self._tree.is_link(join(os.path.dirname(real), stem)):
                self._add_link(real, stem, file.soname or os.path.basename(real))

    def _add_link(self, real: str, name: str, text: str) -> None:
        """Add a link beside a file, unless the host has another file of that name."""
        path = join(os.path.dirname(real), name)
        existing = self._tree.file(path)
        is_free = existing is None or existing.real == real
        if path != real and name != text and is_free and path not in self._files:
            self._links.setdefault(path, (text, real))


def _kind(target: TreeFile, name: str) -> FileKind:
    if LIBRARY.fullmatch(name):
        return "library"
    if "/firmware/" in target.real:
        return "firmware"
    if name.endswith(".so"):
        return "module"
    return "binary" if target.mode & 0o111 else "config"
