# SPDX-License-Identifier: Apache-2.0
"""Adds device rules to systemd units: without them a daemon-reload would remove the GPU.

It runs the host's systemctl, which can reach the service manager, in the host's namespaces,
before the hook enters those of the container.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.prestart.rule import Rule

RUNNING = "/run/systemd/system"  # sd_booted(3)
PROGRAM = "systemctl"
TIMEOUT_S = 10
OPEN = (b"DevicePolicy=auto", b"DeviceAllow=")
"""Output of systemctl show for a unit that may open every device."""


def allow(
    unit: str,
    rules: list[Rule],
    *,
    env: dict[str, str],
    warn: Callable[[str], None],
    running: str = RUNNING,
    folders: tuple[str, ...] = paths.DEFAULT_PATH_DIRS,
) -> None:
    """Add device rules to a unit until the unit ends; do nothing on a host without systemd.

    A unit without rules is not changed either: that of a privileged container, or a service in
    which an engine keeps its containers. The first DeviceAllow= would deny such a unit all other
    devices (systemd.resource-control(5), DevicePolicy=auto).

    A failure is a warning, because the GPU works until the next daemon-reload.
    """
    try:
        posix.stat(running)
    except OSError:
        return
    program = next((p for p in (f"{d}/{PROGRAM}" for d in folders) if _is_program(p)), "")
    if not program:
        return
    words = ["show", "--property=DevicePolicy", "--property=DeviceAllow", "--", unit]
    result = _systemctl([program, *words], env, warn)
    if result is None:
        return
    data, status = result
    if not status and OPEN[0] in data.split() and set(data.split()) <= set(OPEN):
        return
    words = [f"DeviceAllow=/dev/{_kind(r)}/{r.major}:{r.minor} {r.access}" for r in rules]
    if not status:
        result = _systemctl([program, "set-property", "--runtime", "--", unit, *words], env, warn)
        if result is None:
            return
        status = result[1]
    if status:
        warn(f"systemd did not take device rules for {unit}: a daemon-reload may undo them")


def _systemctl(
    argv: list[str], env: dict[str, str], warn: Callable[[str], None]
) -> tuple[bytes, int] | None:
    from nvct.container import cold_process

    try:
        return cold_process.spawn(argv, env, f"{PROGRAM} {argv[1]}", TIMEOUT_S)
    except NvctError as error:
        warn(error.message)
        return None


def _kind(rule: Rule) -> str:
    return "block" if rule.kind == "b" else "char"


def _is_program(path: str) -> bool:
    return posix.access(path, posix.X_OK)
