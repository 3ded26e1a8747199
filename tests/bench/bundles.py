# SPDX-License-Identifier: Apache-2.0
"""Bundles as engines make them: config.json on a tmpfs, with a separate overlay as root.

All writes go to memory, so that the disk has no effect. ext4 skips inodes that were removed in
the last minutes (fs/ext4/ialloc.c, recently_deleted): after a few rounds, or beside other tests, a
new link costs 150 us there instead of 17; and a rename over a file waits for its blocks.
"""

import itertools
import shutil
from pathlib import Path

from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from nvct_sim import bundle


class Bundles:
    """The bundles of one run, in the mount namespace of a simulated node.

    Attributes:
        is_overlay: whether roots are overlays; without overlayfs they are copies.
    """

    def __init__(self, work: Path, image: Path) -> None:
        """Mount the tmpfs.

        Args:
            work: the folder for the bundles.
            image: the initial content of each root.
        """
        self._place = work / "bundles"
        self._uppers = self._place / ".uppers"
        self._image = image
        self._number = itertools.count()
        self._mounted: set[Path] = set()
        self._place.mkdir()
        KERNEL.mount("nvct-bench", str(self._place), "tmpfs", 0, "mode=755")
        self._uppers.mkdir()
        self.is_overlay = True

    def folder(self, name: str) -> Path:
        """Return a bundle's folder; make it if missing."""
        made = self._place / name
        made.mkdir(exist_ok=True)
        return made

    def renew(self, folder: Path) -> None:
        """Give a bundle an unmodified root."""
        root = folder / "rootfs"
        if folder in self._mounted:
            KERNEL.umount2(str(root), MNT_DETACH)
            self._mounted.remove(folder)
        shutil.rmtree(root, ignore_errors=True)
        if self.is_overlay:
            root.mkdir()
            self.is_overlay = self._mount(folder, root)
        if not self.is_overlay:
            shutil.rmtree(root)
            bundle.clone_rootfs(self._image, root)

    def _mount(self, folder: Path, root: Path) -> bool:
        layers = self._uppers / str(next(self._number))
        for name in ("upper", "work"):
            (layers / name).mkdir(parents=True)
        options = f"lowerdir={self._image},upperdir={layers}/upper,workdir={layers}/work"
        try:
            KERNEL.mount("nvct-bench", str(root), "overlay", 0, options)
        except OSError:
            return False
        self._mounted.add(folder)
        return True
