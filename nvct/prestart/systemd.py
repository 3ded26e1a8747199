# SPDX-License-Identifier: Apache-2.0
"""Device rules that systemd keeps: without them a daemon-reload would take the GPU away.

systemctl, for it knows how to talk to the manager; of the host, in the host's namespaces, before
anything of the container is entered.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.prestart.rules import Rule

RUNNING = "/run/systemd/system"  # sd_booted(3)
PROGRAM = "systemctl"
TIMEOUT_S = 10


def allow(
    unit: str,
    rules: list[Rule],
    *,
    env: dict[str, str],
    warn: Callable[[str], None],
    running: str = RUNNING,
    folders: tuple[str, ...] = paths.DEFAULT_PATH_DIRS,
) -> None:
    """Add device rules to a unit until it ends; a host without systemd needs none.

    That it failed is a warning: the GPU is there until the next daemon-reload.
    """
    try:
        posix.stat(running)
    except OSError:
        return
    program = next((p for p in (f"{d}/{PROGRAM}" for d in folders) if _is_program(p)), "")
    if not program:
        return
    words = [f"DeviceAllow=/dev/{_kind(r)}/{r.major}:{r.minor} {r.access}" for r in rules]
    from nvct.shim import door

    argv = [program, "set-property", "--runtime", "--", unit, *words]
    try:
        status = door.spawn(argv, env, f"{PROGRAM} set-property", TIMEOUT_S)[1]
    except NvctError as error:
        warn(error.message)
        return
    if status:
        warn(f"systemd did not take device rules for {unit}: a daemon-reload may undo them")


def _kind(rule: Rule) -> str:
    return "block" if rule.kind == "b" else "char"


def _is_program(path: str) -> bool:
    return posix.access(path, posix.X_OK)
