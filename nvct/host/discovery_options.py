# SPDX-License-Identifier: Apache-2.0
"""Options of a discovery, which commands set from their own options, and its feature flags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from nvct.errors import UsageError
from nvct.host.gpu.nodes import StatNode
from nvct.host.nvml.model import Nvml
from nvct.linux import device_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """Options of a discovery."""

    # the source of facts that procfs does not show; "auto" is the library of the driver root, None
    # means that NVML is never called
    nvml: Nvml | Literal["auto"] | None = "auto"
    # absolute host directories that replace the usual ones in the search for libraries
    search_paths: Sequence[str] = ()
    # absolute host directories that replace /etc and the XDG data directories in the search for
    # configuration files
    config_search_paths: Sequence[str] = ()
    stat_node: StatNode = device_nodes.node  # `nodes.named_nodes` where nodes are plain files
    machine: str = ""  # of the libraries, as uname prints it; this machine's if empty
    csv_files: Sequence[str] | None = None  # a Tegra's; None means JetPack's base files
    csv_ignore: Sequence[str] = ()  # patterns of the symbolic links to leave out
    csv_all: bool = False  # read every file of JetPack's folder, not only the base files
    compat_container_root: str = ""  # folder of the CUDA compat libraries in a Tegra's containers
    flags: frozenset[str] = frozenset()  # of `--feature-flag`, known ones only
    compat32: bool = False  # include 32-bit libraries; nvidia-container-toolkit leaves them out
    csv_folder: str = ""  # JetPack's folder of CSV files; its usual place in /etc if empty
    # absolute directories in the driver root that replace the XDG data directories, unless empty
    data_dirs: Sequence[str] = ()

    def nvml_of(self, library: str | None) -> Nvml | None:
        """Return the source of facts that procfs does not show, None if there is none.

        `library` is the host path of libnvidia-ml.so, None or "" if the driver has none.
        """
        if self.nvml != "auto":
            return self.nvml
        if not library:
            return None
        from nvct.host.nvml.session import (
            shared_session,  # 3 ms, and hosts without MIG do not need it
        )

        return shared_session(library)


DEFAULTS = DiscoveryOptions()


def check_absolute(search_paths: Sequence[str]) -> None:
    """Check search paths; UsageError if a path is not absolute."""
    for path in search_paths:
        if not path.startswith("/"):
            raise UsageError(f"the search path {path!r} is not absolute", hint="start it with a /")


# The names are those of nvidia-container-toolkit (pkg/nvcdi/api.go of v1.20), which accepts
# unknown flags silently. An unknown flag is a warning here.
EXPLICIT_LIBRARIES = "enable-explicit-driver-libraries"
COHERENT = "enable-coherent-annotations"
ONE_CSV_DEVICE = "disable-multiple-csv-devices"
NO_GIDS = "no-additional-gids-for-device-nodes"
NO_IPC = "disable-ipc-discoverer"
NO_SANDBOXUTILS = "disable-nvsandboxutils"
KNOWN = (EXPLICIT_LIBRARIES, COHERENT, ONE_CSV_DEVICE, NO_GIDS, NO_IPC, NO_SANDBOXUTILS)
# nvidia-container-toolkit before v1.17.5 used this name and still accepts it.
ALIASES = {"disable-nvsandbox-utils": NO_SANDBOXUTILS}
TRUTH = {"true": True, "false": False}


def parse(words: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the flags that are on, and a warning for each unknown word.

    A flag can be written NAME=true or NAME=false. If a flag occurs twice, the last one counts.
    """
    state: dict[str, bool] = {}
    warnings = []
    for word in words:
        name, equals, value = word.strip().partition("=")
        name = ALIASES.get(name, name)
        is_on = TRUTH.get(value.lower()) if equals else True
        if name not in KNOWN or is_on is None:
            warnings.append(
                f"feature flag {word!r} is unknown and has no effect: known are {', '.join(KNOWN)}"
            )
            continue
        state[name] = is_on
    return frozenset(name for name, is_on in state.items() if is_on), tuple(warnings)
