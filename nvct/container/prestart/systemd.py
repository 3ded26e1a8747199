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

    from nvct.container.prestart.rule import Rule

RUNNING = "/run/systemd/system"  # sd_booted(3)
PROGRAM = "systemctl"
TIMEOUT_S = 10
OPEN = (b"DevicePolicy=auto", b"DeviceAllow=")
"""What systemctl show says of a unit that may open every device."""


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

    Nor does a unit that has no rules itself, a privileged container's or a service in which an
    engine keeps its containers: the first DeviceAllow= would close it for all other devices
    (systemd.resource-control(5), DevicePolicy=auto).

    That it failed is a warning: the GPU is there until the next daemon-reload.
    """
    try:
        posix.stat(running)
    except OSError:
        return
    program = next((p for p in (f"{d}/{PROGRAM}" for d in folders) if _is_program(p)), "")
    if not program:
        return
    words = ["show", "--property=DevicePolicy", "--property=DeviceAllow", "--", unit]
    said = _ask([program, *words], env, warn)
    if said is None:
        return
    data, status = said
    if not status and OPEN[0] in data.split() and set(data.split()) <= set(OPEN):
        return
    words = [f"DeviceAllow=/dev/{_kind(r)}/{r.major}:{r.minor} {r.access}" for r in rules]
    if not status:
        said = _ask([program, "set-property", "--runtime", "--", unit, *words], env, warn)
        if said is None:
            return
        status = said[1]
    if status:
        warn(f"systemd did not take device rules for {unit}: a daemon-reload may undo them")


def _ask(
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
