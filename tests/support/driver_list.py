# SPDX-License-Identifier: Apache-2.0
"""Lists of the files that a real driver's packages install: facts, without the files' content.

A list is a text of lines `KIND MARK PATH REST`; "#" starts a comment::

    elf   + PATH MACHINE SONAME NEEDED...   "-" for no SONAME; of NEEDED what is the driver's
    link  - PATH TARGET
    text  + PATH LIBRARY...                 configuration, and the libraries that it names
    file  + PATH MODE

MARK is "+" for what nvidia-ctk 1.20, another program, mounts into containers. To make one, unpack
or install the packages below ROOT and run ldconfig -r ROOT; SPEC is what the other program
generates with --driver-root ROOT::

    python -m tests.support.driver_list ROOT VERSION "Ubuntu 24.04: ..." [SPEC] > LIST
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nvct.errors import ElfError
from nvct.host.driver import names as driver_names
from nvct.linux import elf

TOPS = ("etc", "lib", "sbin", "usr/bin", "usr/lib", "usr/sbin", "usr/share")
OURS = re.compile(
    r"/(?:lib)?nvidia|/libcuda|/libnv|/nv-|/nvswitch-|_nvidia|/gsp|/ucodes_|/nvoptix|nvngx\.dll"
    r"|/libGLX_indirect|/alternatives/.*nvidia|/libglx\.so\.\d{3}"
)
# Files that discovery ignores, in folders with many of them.
OTHERS = re.compile(
    r"/(?:doc|man|src|lintian|locale|applications|pixmaps|icons|bug|systemd|initramfs-tools"
    r"|xdg|init\.d|rc\d\.d|default|modprobe\.d|lib/modules|modules-load\.d|udev|nvidia/nvswitch"
    r"|apport|dbus-1|dpkg|dkms)/|\.gz$|\.desktop$|/(?:sbin|bin)/ub-|installer|/libnvidia-simstate"
)
TEXTS = (".json", ".icd")
LIBRARY = re.compile(rb"[\w./-]*lib[\w.+-]+\.so[\w.]*")


class Entry(NamedTuple):
    """A line of a list."""

    kind: str
    is_mounted: bool
    path: str
    rest: tuple[str, ...]


def read(path: Path) -> tuple[str, list[Entry]]:
    """Return a list's driver version and its lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    version = next(line.rpartition(" ")[2] for line in lines if line.startswith("# driver "))
    words = (line.split() for line in lines if not line.startswith("#"))
    return version, [Entry(w[0], w[1] == "+", w[2], tuple(w[3:])) for w in words]


def entries(root: str, mounted: set[str]) -> Iterator[Entry]:
    """Yield the entries of a root, by path."""
    found = {}
    for top in ("bin", "lib", "lib64", "sbin"):
        if os.path.islink(f"{root}/{top}"):
            found[f"/{top}"] = _entry(root, f"/{top}", mounted)
    for top in TOPS:
        for folder, folders, files in os.walk(f"{root}/{top}"):
            if f"/{top}" in found:
                break
            for name in [*files, *(n for n in folders if os.path.islink(f"{folder}/{n}"))]:
                path = f"{folder}/{name}".removeprefix(root)
                if OURS.search(path) and not OTHERS.search(path):
                    found[path] = _entry(root, path, mounted)
    for path in sorted(found):
        yield found[path]


def _entry(root: str, path: str, mounted: set[str]) -> Entry:
    place, is_mounted = root + path, path in mounted
    if os.path.islink(place):
        return Entry("link", is_mounted, path, (os.readlink(place),))
    if ".so" in path:
        with open(place, "rb") as file:
            try:
                headers = elf.Elf(file.fileno())
                needed = [name for name in headers.needed if driver_names.is_of_driver(name)]
            except ElfError:
                pass
            else:
                rest = (headers.machine, headers.soname or "-", *needed)
                return Entry("elf", is_mounted, path, rest)
    if path.endswith(TEXTS):
        with open(place, "rb") as file:
            names = dict.fromkeys(name.decode() for name in LIBRARY.findall(file.read()))
        return Entry("text", is_mounted, path, tuple(names))
    return Entry("file", is_mounted, path, (f"{os.stat(place).st_mode & 0o7777:o}",))


def _mounted(root: str, spec: str) -> set[str]:
    """Return the real paths, inside a root, of the files that a CDI spec mounts."""
    with open(spec, encoding="utf-8") as file:
        document = json.load(file)
    edits = [document["containerEdits"], *(d["containerEdits"] for d in document["devices"])]
    paths = {mount["hostPath"] for each in edits for mount in each.get("mounts", ())}
    return {os.path.realpath(path).removeprefix(root) for path in paths}


def main() -> None:
    """Print a list."""
    root, version, source, *spec = sys.argv[1:]
    root = os.path.realpath(root)
    print(f"# driver {version}\n# {source}")
    for entry in entries(root, _mounted(root, spec[0]) if spec else set()):
        print(entry.kind, "+" if entry.is_mounted else "-", entry.path, *entry.rest)


if __name__ == "__main__":
    main()
