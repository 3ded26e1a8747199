# SPDX-License-Identifier: Apache-2.0
"""The kind, hooks and environment of a generated spec, by mode.

Contract: values only. Each mode without GPUs has a kind of its own, so that specs of several modes
can be in one folder: engines refuse two files that define one device name.
nvidia-container-toolkit v1.20 has these kinds in its library, but its command line overrides them
with nvidia.com/gpu.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvct.host.model import Mode

VENDOR = "nvidia.com"
LINKS_AND_CACHE = frozenset({"create-symlinks", "update-ldcache"})
DRIVER_HOOKS = LINKS_AND_CACHE | {"enable-cuda-compat", "chmod"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The properties of a mode's specs.

    Attributes:
        vendor, cls: the default kind.
        hooks: the hooks that its containers may have; enabling another one has no effect.
        has_libcuda_env: whether NVIDIA_CTK_LIBCUDA_DIR names the directories of libcuda; only
            for drivers with libraries in the usual directories.
        has_numbers: whether a device name that is a number is a GPU's index (type-index: gpu0).
    """

    vendor: str = VENDOR
    cls: str = "gpu"
    hooks: frozenset[str] = frozenset()
    has_libcuda_env: bool = False
    has_numbers: bool = False


# As pkg/nvcdi of nvidia-container-toolkit v1.20: lib.go, options.go, driver-nvml.go, lib-csv.go,
# driver-wsl.go, gated.go. A management container makes device nodes itself, so it needs the
# driver's params unmasked.
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
    """Return vendor and class of a mode's specs; arguments override the defaults."""
    rules = RULES[mode]
    return vendor or rules.vendor, cls or rules.cls
