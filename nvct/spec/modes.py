# SPDX-License-Identifier: Apache-2.0
"""What depends on the mode in a generated spec: its kind, its hooks, its environment.

Contract: values only. Each mode has a kind of its own where its devices are no GPUs, so that specs
of several modes can lie in one folder: two files that give one name make engines refuse both.
nvidia-container-toolkit v1.20 has these kinds in its library, but its command line overrides them
with nvidia.com/gpu.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.model import Mode

VENDOR = "nvidia.com"
LINKS_AND_CACHE = frozenset({"create-symlinks", "update-ldcache"})
DRIVER_HOOKS = LINKS_AND_CACHE | {"enable-cuda-compat", "chmod"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a mode's specs are like.

    Attributes:
        vendor, cls: the kind, where nobody asks for another one.
        hooks: what its containers may have done; enabling another one has no effect.
        has_libcuda_env: whether NVIDIA_CTK_LIBCUDA_DIR names the directories of libcuda. Only
            where the driver's libraries stand at their usual places.
        has_numbers: whether device names that are numbers count GPUs, as type-index shows.
    """

    vendor: str = VENDOR
    cls: str = "gpu"
    hooks: frozenset[str] = frozenset()
    has_libcuda_env: bool = False
    has_numbers: bool = False


# As pkg/nvcdi of nvidia-container-toolkit v1.20: lib.go, options.go, driver-nvml.go, lib-csv.go,
# driver-wsl.go, gated.go. A management container makes device nodes itself: it needs the driver's
# params as they are.
RULES: dict[Mode, Rules] = {
    "nvml": Rules(
        hooks=DRIVER_HOOKS | {"disable-device-node-modification", "update-application-profile"},
        has_libcuda_env=True,
        has_numbers=True,
    ),
    "csv": Rules(hooks=DRIVER_HOOKS, has_numbers=True),
    "wsl": Rules(hooks=LINKS_AND_CACHE),
    "management": Rules(vendor="management.nvidia.com", hooks=DRIVER_HOOKS, has_libcuda_env=True),
    "gdrcopy": Rules(cls="gdrcopy"),
    "gds": Rules(cls="gds"),
    "mofed": Rules(cls="mofed"),
    "nvswitch": Rules(cls="nvswitch"),
    "imex": Rules(cls="imex-channel"),
}


def kind(mode: Mode, vendor: str = "", cls: str = "") -> tuple[str, str]:
    """Return vendor and class of a mode's specs; what is asked for wins."""
    rules = RULES[mode]
    return vendor or rules.vendor, cls or rules.cls
