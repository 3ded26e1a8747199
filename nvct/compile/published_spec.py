# SPDX-License-Identifier: Apache-2.0
"""The CDI spec that engines read themselves: whose file it is, and taking it away.

Cold. A spec is replaced or removed only if it is of this host's NVIDIA devices: written by us, or
by another generator of the same kind of devices, whose place we take. What lies under that name
and is something else stays.
"""

from __future__ import annotations

import os
import re
import time

from nvct.cdi import load
from nvct.compile import live_host
from nvct.container.plan import fingerprints
from nvct.errors import DocumentError, HostError, UsageError
from nvct.host.driver.libraries import machine_directories
from nvct.host.roots import join
from nvct.spec import provenance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.container.plan.fingerprints import Fingerprint

KIND = "nvidia.com/gpu"
# What a generator leaves that was killed, or found the disk full, while it wrote in place.
BEGINS = re.compile(
    rb'\s*\Z|.*?^[\s{]*["\']?kind["\']?:\s*["\']?nvidia\.com/gpu\b', re.MULTILINE | re.DOTALL
)
HEAD = 1 << 16  # bytes


def watched(settings: Config) -> list[Fingerprint]:
    """Return what moves when a driver is installed, removed or loaded; cheap to compare.

    A path unit does not see what happens while its service runs: so whoever publishes looks
    again if one of these has changed meanwhile.
    """
    roots, now = live_host.roots_of(settings), time.time_ns()
    files = [f"{roots.etc}/ld.so.cache"]
    places = ("/usr/bin", *machine_directories(os.uname().machine))
    files += [join(roots.driver_root, place) for place in places]
    found = [fingerprints.take_file(path, now) for path in files]
    return [*found, fingerprints.take("text", f"{roots.proc}/driver/nvidia/version")]


def check(path: str) -> None:
    """Refuse to take the place of somebody else's file.

    Raises:
        HostError: it is one.
    """
    if not os.path.lexists(path):
        return
    try:
        spec = load.load_file(path)
    except DocumentError as error:
        if _is_half_of_ours(path):
            return
        raise _stays(path, "no CDI specification") from error
    if spec["kind"] != KIND and provenance.read(spec, path) is None:
        raise _stays(path, f"somebody else's specification of {spec['kind']}")


def place(output: str) -> str:
    """Return the path that a spec gets: one without an ending that engines read gets .yaml.

    Raises:
        UsageError: there is no name, or it is a folder's.
    """
    if not os.path.basename(output) or os.path.isdir(output):
        raise UsageError(f"{output!r} names no file", hint="such as /var/run/cdi/nvidia.yaml")
    ending = os.path.splitext(output)[1]
    return output if ending in load.EXTENSIONS else f"{output}.yaml"


def _is_half_of_ours(path: str) -> bool:
    """Tell a malformed file that was to be a spec of this host's devices, or is empty."""
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return BEGINS.match(file.read(HEAD)) is not None
    except OSError:
        return False


def _stays(path: str, what: str) -> HostError:
    return HostError(
        f"{path} is {what}; it stays",
        hint="move it away, or set NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
    )


def withdraw(path: str) -> bool:
    """Remove the spec; return whether there was one.

    Raises:
        HostError: as `check`, or it cannot be removed.
    """
    check(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError(f"{path} cannot be removed: {error.strerror}") from error
    return True
