# SPDX-License-Identifier: Apache-2.0
"""Runs on a simulated node, in a separate mount namespace, and records NVIDIA's programs there."""

import sys
from pathlib import Path

from nvct.linux.kernel import KERNEL
from tests.peer import cases, gfd, mig, plugin, shipped
from tests.peer.kubelet import FOLDER


def main(programs: Path, name: str, target: Path, work: Path) -> None:
    """Record the node on which this process runs.

    Args:
        programs: the folder of NVIDIA's programs.
        name: of the node.
        target: the folder of its recordings; it must not exist.
        work: a folder for temporary files.
    """
    # The plugin's socket folder is fixed. This mount is private to the namespace.
    KERNEL.mount("nvct-peer", "/var/lib", "tmpfs")
    Path(FOLDER).mkdir(parents=True)
    wanted = cases.NODES[name].mig
    if wanted:
        mig.apply(programs, work, wanted)
    gfd.record(programs, name, target / "gpu-feature-discovery", work)
    plugin.record(programs, name, target / "device-plugin", work)
    if not wanted:  # it changes the node, from the same initial instances
        mig.record(programs, target / "mig-parted", work)
    if name == shipped.NODE:
        shipped.record(programs, target / "mig-parted", work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
