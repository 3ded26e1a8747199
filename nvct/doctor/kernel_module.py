# SPDX-License-Identifier: Apache-2.0
"""Checks why the driver's kernel module is not loaded on a host that has a GPU. Cold."""

from __future__ import annotations

import os
import re

from nvct.doctor.gpu_health import Log
from nvct.doctor.model import Finding, Part
from nvct.doctor.parts import part_of
from nvct.doctor.reasons import Reason
from nvct.errors import DocumentError
from nvct.host import modes, procfs
from nvct.host.gpu import pci
from nvct.host.roots import Roots
from nvct.linux.files import read_bytes

MODULE = re.compile(rb"^(?:[^:\n]*/)?nvidia(?:-current)?\.ko(?:\.\w+)?:", re.MULTILINE)
"""The module's line in modules.dep, with a suffix of compression or none. Debian renames it."""
DEP_LIMIT = 16 << 20
UNSIGNED = (
    "module with unavailable key is rejected", "unsigned module is rejected",
    "unsigned module loading is restricted", "Key was rejected",
)  # fmt: skip
"""The kernel's words about a module that it does not trust: kernel/module/signing.c."""
LOG = "var/lib/dkms/nvidia"


def check(roots: Roots, log: Log, host: str = "/", release: str = "") -> Part:
    """Check that the module is loaded; if not, find out why.

    Args:
        host: the folder with lib/modules and var.
    """
    version = procfs.driver_version(roots)
    if version:
        return part_of("module", [f"loaded: {version}"])
    if modes.mode_and_reason(roots)[0] != "nvml":
        return part_of("module", ["this platform has a module of its own"], health="absent")
    if not pci.count(roots):
        return part_of("module", ["no GPU of NVIDIA on the PCI bus"], health="absent")
    if all_elsewhere(roots):
        text = "another driver has each GPU, as the check gpus says"
        return part_of("module", [text], health="absent")
    finding = _why(log, host, release or os.uname().release)
    return part_of("module", [finding.evidence], [finding])


def all_elsewhere(roots: Roots) -> bool:
    """Return whether each GPU is bound to another driver than NVIDIA's."""
    return len(pci.bound_elsewhere(roots)) == pci.count(roots)


def _why(log: Log, host: str, release: str) -> Finding:
    root = host.rstrip("/")
    refused = [message.text for message in log.messages if _refuses(message.text)]
    if refused:
        return Finding(
            reason=Reason.DriverNotLoaded, severity="error",
            evidence=f"the kernel does not load unsigned modules: {refused[-1]}",
            remedy="Enroll the key that signs the module with `mokutil --import`, and reboot; or"
            " switch Secure Boot off.",
        )  # fmt: skip
    releases = [
        one for one in procfs.list_directory(f"{root}/lib/modules") if _has_module(root, one)
    ]
    if release in releases:
        return Finding(
            reason=Reason.DriverNotLoaded, severity="error",
            evidence=f"the module is built for kernel {release}, and is not loaded",
            remedy="Load it with `modprobe nvidia`; if that fails, read `dmesg`.",
        )  # fmt: skip
    others = f"; there is one for {', '.join(releases)}" if releases else ""
    failed = _build_log(root, release)
    return Finding(
        reason=Reason.DriverNotLoaded, severity="error",
        evidence=f"no module nvidia for the running kernel {release}{others}",
        context=f"its last build has a log: {failed}" if failed else "",
        remedy="Install the headers of this kernel and run `dkms autoinstall`, or boot a kernel"
        " that has the module; without DKMS, install the driver again.",
    )  # fmt: skip


def _refuses(text: str) -> bool:
    return any(words in text for words in UNSIGNED)


def _has_module(root: str, release: str) -> bool:
    try:
        return bool(
            MODULE.search(read_bytes(f"{root}/lib/modules/{release}/modules.dep", DEP_LIMIT))
        )
    except (OSError, DocumentError):
        return False


def _build_log(root: str, release: str) -> str:
    """Return the path of DKMS's log of a build for a kernel that failed, "" if there is none."""
    folder = f"{root}/{LOG}"
    for version in procfs.list_directory(folder):
        path = f"{folder}/{version}/build/make.log"
        if release in (procfs.read_text(path) or ""):
            return f"/{LOG}/{version}/build/make.log"
    return ""
