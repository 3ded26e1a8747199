# SPDX-License-Identifier: Apache-2.0
"""How to look at a machine: what the commands' options say about discovery, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nvct.linux import device_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.host.gpu.nodes import StatNode
    from nvct.host.nvml.model import Nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How to look.

    Attributes:
        nvml: asked where procfs does not tell; "auto" is the driver root's own library, None
            means that it is never asked.
        search_paths: absolute directories of the host that replace the library directories.
        config_search_paths: absolute directories of the host that replace those where
            configuration files are looked for (/etc and the XDG data directories).
        stat_node: `nodes.named_nodes(roots)` for trees whose nodes are plain files.
        machine: of the libraries wanted, as uname names it; this machine's if empty.
        csv_files: of a Tegra's base files; those of JetPack's folder if None.
        csv_ignore: patterns of symbolic links in those that are not wanted.
        csv_all: every file of JetPack's folder, not only the base files.
        compat_container_root: where a Tegra container's CUDA compat libraries are.
        flags: of `--feature-flag`, known ones only.
        compat32: 32-bit libraries as well; else they are left out, as by nvidia-container-toolkit.
        csv_folder: where JetPack's folder of CSV files is; its usual place in /etc if empty.
        data_dirs: absolute directories of the driver root that replace the XDG data directories;
            the usual ones if empty.
    """

    nvml: Nvml | Literal["auto"] | None = "auto"
    search_paths: Sequence[str] = ()
    config_search_paths: Sequence[str] = ()
    stat_node: StatNode = device_nodes.node
    machine: str = ""
    csv_files: Sequence[str] | None = None
    csv_ignore: Sequence[str] = ()
    csv_all: bool = False
    compat_container_root: str = ""
    flags: frozenset[str] = frozenset()
    compat32: bool = False
    csv_folder: str = ""
    data_dirs: Sequence[str] = ()

    def nvml_of(self, library: str | None) -> Nvml | None:
        """Return what is asked where procfs does not tell, None if nothing is.

        Args:
            library: path of the driver's libnvidia-ml.so, None or "" if it has none.
        """
        if self.nvml != "auto":
            return self.nvml
        if not library:
            return None
        from nvct.host.nvml import shared  # 3 ms, and hosts without MIG do not need it

        return shared.session(library)
