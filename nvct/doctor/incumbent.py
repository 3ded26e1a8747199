# SPDX-License-Identifier: Apache-2.0
"""Finds NVIDIA Container Toolkit on this host, and the vulnerabilities of its release. Cold.

No program is run: the version is in the name of its library, and in dpkg's list of packages. The
table is that of NVIDIA's security bulletins (www.nvidia.com/en-us/security): what a release fixes
is open in those before it.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator

from nvct.doctor.model import Finding, Part
from nvct.doctor.parts import part_of
from nvct.doctor.reasons import Reason
from nvct.errors import DocumentError
from nvct.linux.files import read_bytes

FIXED = (
    ("1.16.2", ("CVE-2024-0132", "CVE-2024-0133")),
    ("1.17.0", ("CVE-2024-0134",)),
    ("1.17.3", ("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137")),
    ("1.17.4", ("CVE-2025-23359",)),
    ("1.17.8", ("CVE-2025-23266", "CVE-2025-23267")),
)
"""Release, and what it fixes."""
LIBRARIES = (
    "usr/lib/*/libnvidia-container.so.1.*", "usr/lib64/libnvidia-container.so.1.*",
    "usr/lib/libnvidia-container.so.1.*", "usr/local/nvidia/toolkit/libnvidia-container.so.1.*",
    "usr/local/nvidia/toolkit/.toolkit/libnvidia-container.so.1.*",
    "snap/docker/current/usr/lib/*/libnvidia-container.so.1.*",
)  # fmt: skip
"""Packages; the GPU operator; Docker's snap."""
IN_NAME = re.compile(r"\.so\.(1\.\d+\.\d+)$")
DPKG = "var/lib/dpkg/status"
DPKG_LIMIT = 64 << 20
PACKAGE = re.compile(
    r"^Package: (nvidia-container-toolkit(?:-base)?)\nStatus: [^\n]* installed\n"
    r"(?:.+\n)*?Version: (?:\d+:)?(1\.\d+\.\d+)",
    re.MULTILINE,
)
HOOKS = ("usr/share/containers/oci/hooks.d", "etc/containers/oci/hooks.d")
"""Of Podman and CRI-O: containers-common, oci-hooks(5)."""


def check(host: str = "/") -> Part:
    """Check which releases of the toolkit are here, and what they left behind.

    Args:
        host: the folder with usr, var and etc.
    """
    root = host.rstrip("/")
    found = [_of(where, version) for where, version in sorted(_versions(root))]
    found += _hooks(root)
    if not found:
        text = "no library or package of NVIDIA Container Toolkit"
        return part_of("toolkit", [text], health="absent")
    return part_of("toolkit", [finding.evidence for finding in found], found)


def _versions(root: str) -> set[tuple[str, str]]:
    """Return where a release is, and which."""
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


def _of(where: str, version: str) -> Finding:
    open_ones = open_holes(version)
    if not open_ones:
        text = f"{where} is of release {version}"
        return Finding(reason=Reason.ToolkitVulnerable, severity="ok", evidence=text)
    return Finding(
        reason=Reason.ToolkitVulnerable,
        severity="error",
        evidence=f"{where} is of release {version}, which is open to {', '.join(open_ones)}",
    )


def _hooks(root: str) -> Iterator[Finding]:
    """Yield a finding for each file of an OCI hook whose program is not there: engines fail."""
    for folder in HOOKS:
        for path in sorted(glob.glob(f"{root}/{folder}/*.json")):
            program = _program(path)
            if "nvidia" in os.path.basename(program) and not os.path.exists(f"{root}{program}"):
                yield Finding(
                    reason=Reason.HookMissing,
                    severity="error",
                    evidence=f"{path[len(root) :]} names {program}, which does not exist",
                    remedy=f"Remove {path[len(root) :]}, or install nvct.",
                )


def _program(path: str) -> str:
    try:
        document = json.loads(read_bytes(path, 1 << 20))
        return str(document["hook"]["path"])
    except (OSError, DocumentError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
