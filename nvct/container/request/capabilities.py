# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_DRIVER_CAPABILITIES: which parts of the driver a container gets.

Hot; loaded if the variable is set, or in legacy mode. Modes jit-cdi and cdi of the incumbent
(nvidia-container-toolkit v1.20) ignore the variable; its legacy mode has the rules of this module.
"""

from __future__ import annotations

from nvct.config.model import DRIVER_CAPABILITIES
from nvct.container.request.model import CAPABILITIES
from nvct.container.request.visible_devices import shown, split
from nvct.errors import ConfigError, NotPermittedError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT = ("compute", "utility")
HINT = f"use all, or any of {' '.join(DRIVER_CAPABILITIES)}"


def parse(value: str) -> list[str]:
    """Return the sorted capabilities of a comma list, or just ["all"]. Raises RequestError."""
    words = split(value, CAPABILITIES)
    for word in words:
        if word != "all" and word not in DRIVER_CAPABILITIES:
            raise RequestError(f"{CAPABILITIES} has {shown(word)}, which is unknown", hint=HINT)
    return ["all"] if "all" in words else sorted(set(words))


def resolve(value: str | None, supported: Sequence[str], *, legacy_image: bool) -> list[str]:
    """Return the sorted capabilities that a container gets, at most the `supported` ones.

    For legacy images an unset variable means all of these. Raises RequestError for a word that is
    not a capability, NotPermittedError for a capability that is not supported, and ConfigError if
    `supported` has a word that is not a capability.
    """
    allowed = _bound(supported)
    if value is None and legacy_image:
        return allowed
    requested = parse(value or "")
    if not requested:
        return [name for name in DEFAULT if name in allowed]
    if requested == ["all"]:
        return allowed
    refused = [name for name in requested if name not in allowed]
    if refused:
        raise NotPermittedError(
            f"{CAPABILITIES} has {', '.join(refused)}, which this node does not allow",
            hint="see supported-driver-capabilities in config.toml",
        )
    return requested


def _bound(supported: Sequence[str]) -> list[str]:
    if "all" in supported:
        return list(DRIVER_CAPABILITIES)
    for name in supported:
        if name not in DRIVER_CAPABILITIES:
            text = f"supported-driver-capabilities has {shown(name)}, which is unknown"
            raise ConfigError(text, hint=HINT)
    return sorted(set(supported))


def check_mig_capability(name: str, value: str, *, privileged: bool) -> None:
    """Check a variable that asks for a MIG capability.

    Raises NotPermittedError if the container is not privileged, and RequestError if the value is
    not "all", the only one that libnvidia-container supports.
    """
    if not privileged:
        raise NotPermittedError(
            f"{name}={shown(value)} needs a privileged container",
            hint="unset it, or give CAP_SYS_ADMIN without a user namespace",
        )
    if value != "all":
        raise RequestError(
            f"{name} is {shown(value)}, which is unknown", hint="the only value is all"
        )
