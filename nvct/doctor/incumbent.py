# SPDX-License-Identifier: Apache-2.0
"""Finds NVIDIA Container Toolkit on this host, its open vulnerabilities and hook programs. Cold.

Only hook programs are run, with `--version`, and only if no other user could have written them.
nvct's prints the toolkit's release that it replaces, then its own. The toolkit's version is in the
name of its library, and in dpkg's list of packages. The table is from NVIDIA's security bulletins
(www.nvidia.com/en-us/security): a vulnerability is open in all releases before its fix.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence

from nvct.cdi.check.conflicts import EffectiveSpec
from nvct.doctor.model import Finding, Part
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine import command
from nvct.engine.command import Completed, Run
from nvct.engine.engine_files import read_object
from nvct.errors import DocumentError
from nvct.linux.files import read_bytes
from nvct.paths import CTK_PROGRAM, HOOK_PROGRAM
from nvct.version import __version__

FIXED = (
    ("1.16.2", ("CVE-2024-0132", "CVE-2024-0133")),
    ("1.17.0", ("CVE-2024-0134",)),
    ("1.17.3", ("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137")),
    ("1.17.4", ("CVE-2025-23359",)),
    ("1.17.8", ("CVE-2025-23266", "CVE-2025-23267")),
)
"""Releases, and the vulnerabilities that each fixes."""
LIBRARIES = (
    "usr/lib/*/libnvidia-container.so.1.*", "usr/lib64/libnvidia-container.so.1.*",
    "usr/lib/libnvidia-container.so.1.*", "usr/local/nvidia/toolkit/libnvidia-container.so.1.*",
    "usr/local/nvidia/toolkit/.toolkit/libnvidia-container.so.1.*",
    "snap/docker/current/usr/lib/*/libnvidia-container.so.1.*",
)  # fmt: skip
"""Paths of packages, the GPU operator and Docker's snap."""
IN_NAME = re.compile(r"\.so\.(1\.\d+\.\d+)$")
DPKG = "var/lib/dpkg/status"
DPKG_LIMIT = 64 << 20
PACKAGE = re.compile(
    r"^Package: (nvidia-container-toolkit(?:-base)?)\nStatus: [^\n]* installed\n"
    r"(?:.+\n)*?Version: (?:\d+:)?(1\.\d+\.\d+)",
    re.MULTILINE,
)
HOOKS = ("usr/share/containers/oci/hooks.d", "etc/containers/oci/hooks.d")
"""Hook folders of Podman and CRI-O: containers-common, oci-hooks(5)."""


def check(node: Node) -> Part:
    """Check for vulnerable releases of the toolkit, and for hook files without their program."""
    root = node.host.rstrip("/")
    found = []
    for where, version in sorted(_versions(root)):
        holes, text = open_holes(version), f"{where} has release {version}"
        text += f", which has {', '.join(holes)}" if holes else ""
        found.append(Finding(Reason.ToolkitVulnerable, "error" if holes else "ok", text))
    found += _hooks(root)
    if not found:
        return Part.absent("no library or package of NVIDIA Container Toolkit")
    return Part.of(*found)


def _versions(root: str) -> set[tuple[str, str]]:
    paths = (path for pattern in LIBRARIES for path in glob.glob(f"{root}/{pattern}"))
    found = {(path[len(root) :], match[1]) for path in paths if (match := IN_NAME.search(path))}
    try:
        listed = read_bytes(f"{root}/{DPKG}", DPKG_LIMIT).decode("utf-8", "replace")
    except (OSError, DocumentError):
        return found
    return found | {(f"package {one[1]}", one[2]) for one in PACKAGE.finditer(listed)}


def open_holes(version: str) -> list[str]:
    """Return the known vulnerabilities of a release, such as 1.17.4."""
    return [
        name for release, names in FIXED if _numbers(version) < _numbers(release) for name in names
    ]


def _hooks(root: str) -> Iterator[Finding]:
    """Yield a finding for each OCI hook file without its program, which makes engines fail."""
    for folder in HOOKS:
        for path in sorted(glob.glob(f"{root}/{folder}/*.json")):
            program = hook_program(path)
            if "nvidia" in os.path.basename(program) and not os.path.exists(f"{root}{program}"):
                text = f"{path[len(root) :]} names {program}, which does not exist"
                remedy = f"Remove {path[len(root) :]}, or install nvct."
                yield Finding(Reason.HookMissing, "error", text, remedy)


def hook_program(path: str) -> str:
    """Return the program that the file of an OCI hook names; "" if it names none."""
    hook = read_object(path).get("hook")
    return str(hook.get("path", "")) if isinstance(hook, dict) else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


PROGRAMS = (HOOK_PROGRAM, CTK_PROGRAM)
"""Names of the hook programs that print a release."""
TIMEOUT_S = 1.0
LIMIT = 4  # Programs that are run: a host has one or two
OURS = re.compile(r"^nvct: (\d[\w.+~-]{0,40})$", re.MULTILINE)
TOOLKIT = re.compile(r"\bversion (1\.\d{1,4}\.\d{1,4})\b")
OTHERS_WRITE = 0o002
STICKY = 0o1000


def hook_programs(specs: Sequence[EffectiveSpec], run: Run = command.run) -> Iterator[Finding]:
    """Yield a finding for each hook program without the installed release."""
    for program, path in list(programs_of(specs).items())[:LIMIT]:
        if not os.access(program, os.X_OK) or not os.path.isfile(program):
            continue  # another finding reports that
        if why := _distrust(program):
            text = f"{path}: the release of its hook {program} is unknown: {why}"
            yield Finding(Reason.HookOtherRelease, "unknown", text)
            continue
        yield from _judged(f"{path}: its hook {program}", run([program, "--version"], TIMEOUT_S))


def programs_of(specs: Sequence[EffectiveSpec]) -> dict[str, str]:
    """Return the hook programs that print a release, with the first specification of each."""
    found: dict[str, str] = {}
    for spec in specs:
        for edits, _ in spec.edits():
            for hook in edits.get("hooks", ()):
                if os.path.basename(hook["path"]) in PROGRAMS:
                    found.setdefault(hook["path"], spec.file.path)
    return found


def _distrust(program: str) -> str:
    """Return why a program must not be run by root, "" if it may be."""
    path = os.path.realpath(program)
    for each in (path, os.path.dirname(path)):
        try:
            status = os.stat(each)
        except OSError as error:
            return f"{each}: {error.strerror}"
        if status.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to the user {status.st_uid}"
        if status.st_mode & OTHERS_WRITE and not status.st_mode & STICKY:
            return f"everybody can write {each}"
    return ""


def _judged(hook: str, printed: Completed) -> Iterator[Finding]:
    """Yield a finding if a hook prints neither nvct's installed release nor a safe toolkit's."""
    ours, toolkit = OURS.search(printed.out), TOOLKIT.search(printed.out)
    if printed.status or not (ours or toolkit):
        text = f"{hook} does not print its release"
        text += f": {printed.reason}" if printed.status else ""
        yield Finding(Reason.HookOtherRelease, "unknown", text)
    elif ours and ours[1] != __version__:
        text = f"{hook} is from nvct {ours[1]}; nvct {__version__} is installed"
        yield Finding(Reason.HookOtherRelease, "warning", text)
    elif not ours and toolkit and (holes := open_holes(toolkit[1])):
        text = f"{hook} is from NVIDIA Container Toolkit {toolkit[1]}, which has "
        remedy = "Update nvidia-container-toolkit, or run `nvct publish`."
        yield Finding(Reason.ToolkitVulnerable, "error", text + ", ".join(holes), remedy)
