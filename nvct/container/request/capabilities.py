# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_DRIVER_CAPABILITIES: which parts of the driver a container gets.

Hot; loaded where the variable is set or legacy mode says what unset means. The incumbent's modes
jit-cdi and cdi ignore the variable (nvidia-container-toolkit v1.20); its legacy mode has the same
rules as here.
"""

from __future__ import annotations

from nvct.config.model import DRIVER_CAPABILITIES
from nvct.container.request.visible_devices import shown, split
from nvct.errors import ConfigError, NotPermittedError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"
DEFAULT = ("compute", "utility")
HINT = f"use all, or of {' '.join(DRIVER_CAPABILITIES)}"


def parse(value: str) -> list[str]:
    """Return the capabilities of a comma list, sorted, each once; ["all"] alone when all.

    Raises:
        RequestError: a word is no capability; "all" beside it doesn't hide that.
    """
    words = split(value, VARIABLE)
    for word in words:
        if word != "all" and word not in DRIVER_CAPABILITIES:
            raise RequestError(f"{VARIABLE} has {shown(word)}, which is unknown", hint=HINT)
    return ["all"] if "all" in words else sorted(set(words))


def resolve(value: str | None, supported: Sequence[str], *, legacy_image: bool) -> list[str]:
    """Return the capabilities that a container gets, sorted.

    Args:
        value: of the variable, None when unset.
        supported: the configuration's upper bound.
        legacy_image: unset means everything supported, as for images of before the variable.

    Raises:
        RequestError: a word is no capability.
        NotPermittedError: a capability is not among the supported ones.
        ConfigError: a supported capability does not exist.
    """
    bound = _bound(supported)
    if value is None and legacy_image:
        return bound
    wanted = parse(value or "")
    if not wanted:
        return [name for name in DEFAULT if name in bound]
    if wanted == ["all"]:
        return bound
    refused = [name for name in wanted if name not in bound]
    if refused:
        raise NotPermittedError(
            f"{VARIABLE} has {', '.join(refused)}, which this node does not allow",
            hint="see supported-driver-capabilities in config.toml",
        )
    return wanted


def _bound(supported: Sequence[str]) -> list[str]:
    if "all" in supported:
        return list(DRIVER_CAPABILITIES)
    for name in supported:
        if name not in DRIVER_CAPABILITIES:
            raise ConfigError(f"supported-driver-capabilities has {shown(name)}", hint=HINT)
    return sorted(set(supported))


def mig_capability(variables: Mapping[str, str], name: str, *, privileged: bool) -> bool:
    """Tell whether a container gets the MIG capability that a variable asks for.

    Raises:
        NotPermittedError: it asks, and is not privileged.
        RequestError: it asks for anything but "all" (libnvidia-container knows nothing else).
    """
    value = variables.get(name, "")
    if not value:
        return False
    if not privileged:
        raise NotPermittedError(
            f"{name}={shown(value)} in a container that is not privileged",
            hint="unset it, or give CAP_SYS_ADMIN without a user namespace",
        )
    if value != "all":
        raise RequestError(f"{name} is {shown(value)}", hint="the only value is all")
    return True
