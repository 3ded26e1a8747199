# SPDX-License-Identifier: Apache-2.0
"""The last lines of a test run: what was missing, and how many tests were skipped for it."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator

from nvct.errors import NvctError
from nvct_sim.native import build

ROOT = "root's privileges"
REMEDIES = (
    # words of a reason, the missing thing, the command that installs it; the first match counts
    (r"read by everybody|only its owner", "a checkout that every user may read", ""),
    (r"the table tells of", "a runtime of a version in the table", ""),
    (r"cannot be installed:|does not end$", "a mirror that answers in time", ""),
    (r"(kubernetes|helm) is not built", "Kubernetes", "make kubernetes"),
    (r"CRI-O is not built", "CRI-O", "make crio"),
    (r"mmdebstrap", "mmdebstrap", "{apt} mmdebstrap"),
    (r"debhelper", "debhelper", "{apt} build-essential debhelper dh-python {python}"),
    (r"rpmbuild", "rpmbuild", "{apt} rpm"),
    (r"rpmlint", "rpmlint", "{apt} rpmlint"),
    (r"lintian", "lintian", "{apt} lintian"),
    (r"nvct-hot cannot be built|names no nvct-hot", "nvct-hot", "make static"),
    (r"readelf|\bnm \(|binutils", "binutils", "{apt} binutils"),
    (r"\bcc\b|C compiler|\bgcc\b", "a C compiler", "{apt} gcc libc6-dev"),
    (r"busybox", "busybox-static", "{apt} busybox-static"),
    (r"\brunc\b|\bcrun\b|no containers here", "runc and crun", "{apt} runc crun"),
    (r"podman", "podman", "{apt} podman uidmap"),
    (r"systemd-nspawn|systemd-container", "systemd-nspawn", "{apt} systemd-container"),
    (r"prom(tool|etheus) is missing", "Prometheus", "{apt} prometheus"),
    (r"setpriv", "setpriv", "{apt} util-linux"),
    (r"root|CAP_|privilege|mknod|not permitted|not allow", ROOT, "sudo make test"),
)
NO_COMPILER = re.compile(r"no C compiler|\bcc: not found")
APT = "sudo apt install"
PYTHON = "python3-click python3-jsonschema python3-rich python3-tomlkit python3-yaml"


def lacks_compiler(error: BaseException) -> bool:
    """Report whether a test failed because this machine has no C compiler."""
    if any(map(shutil.which, build.COMPILERS)):
        return False
    if isinstance(error, FileNotFoundError):
        return str(error.filename) == "cc"
    return isinstance(error, NvctError) and bool(NO_COMPILER.search(str(error)))


def remedy(reason: str) -> tuple[str, str]:
    """Return what a skipped test lacked, and the command that installs it or ""."""
    for words, name, command in REMEDIES:
        if name == ROOT and os.geteuid() == 0:
            break  # root of a container, or of a machine that lacks something else
        if re.search(words, reason):
            return name, command.format(apt=APT, python=PYTHON)
    return reason, ""


def summary(reasons: Iterable[str]) -> Iterator[str]:
    """Yield one line for each missing thing, most tests first."""
    counted = Counter(remedy(reason) for reason in reasons)
    if counted:
        yield f"{counted.total()} tests were skipped for want of:"
    for (name, command), count in counted.most_common():
        yield f"{count:6}  {name}" + (f": {command}" if command else "")
