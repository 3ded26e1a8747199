# SPDX-License-Identifier: Apache-2.0
"""The drop-in that makes a later ldconfig in the container find what was injected.

One file of a fixed name, so that a container started again has no second one. `00-` wins over
the image's own folders; the folder of CUDA forward compatibility comes first.
"""

from __future__ import annotations

from nvct.errors import UnsafePathError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.root import Root

PATH = "/etc/ld.so.conf.d/00-nvct.conf"
MAIN = "/etc/ld.so.conf"
MAIN_TEXT = b"include /etc/ld.so.conf.d/*.conf\n"
COMPAT_MARK = "# CUDA forward compatibility"
VIEW_MARK = "# view of the driver"
FOLDERS_MARK = "# driver"
LIMIT = 1 << 16
COMPAT_LIMIT = 4
FOLDER_LIMIT = 256


class LinkerConf:
    """What the drop-in says.

    Attributes:
        compat: folders of CUDA forward compatibility.
        folders: folders of the driver.
        view: folders of the view of the driver that the shim mounts as a whole.
    """

    __slots__ = ("compat", "folders", "view")

    def __init__(
        self, compat: list[str], folders: list[str], view: list[str] | None = None
    ) -> None:
        """Keep the lists."""
        self.compat = compat
        self.folders = folders
        self.view = view or []

    @property
    def all(self) -> list[str]:
        """All folders."""
        return [*self.compat, *self.view, *self.folders]

    def render(self) -> bytes:
        """Return the file's content, nothing if no folder is named.

        Raises:
            UnsafePathError: a folder's name would be read as something else.
        """
        lines: list[str] = []
        groups = {COMPAT_MARK: self.compat, VIEW_MARK: self.view, FOLDERS_MARK: self.folders}
        for mark, folders in groups.items():
            for folder in folders:
                if not is_plain(folder):
                    raise UnsafePathError(f"folder {folder!r} cannot stand in {PATH}")
            if folders:
                lines += [mark, *folders]
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def is_plain(folder: str) -> bool:
    """Tell whether a folder's name means itself in a configuration of a dynamic linker."""
    return folder.startswith("/") and not any(c.isspace() or c in "#=*?[:,;\0" for c in folder)


def read(root: Root) -> LinkerConf:
    """Read the drop-in of an earlier start of the container; empty if there is none."""
    found = LinkerConf([], [])
    data = root.read_file(PATH, LIMIT)
    if data is None:
        return found
    into = found.folders
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        if line == COMPAT_MARK:
            into = found.compat
        elif line == VIEW_MARK:
            into = found.view
        elif line.startswith("#"):
            into = found.folders
        elif is_plain(line):
            into.append(line)
    # An image may bring the file.
    del found.compat[COMPAT_LIMIT:], found.folders[FOLDER_LIMIT:], found.view[COMPAT_LIMIT:]
    return found
