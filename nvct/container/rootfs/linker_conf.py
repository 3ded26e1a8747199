# SPDX-License-Identifier: Apache-2.0
"""The drop-in file with which ldconfig in the container finds injected libraries.

The file has a fixed name, so a restarted container has only one. Because of `00-` it precedes the
image's own folders. The folder of CUDA forward compatibility comes first.
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
    """The content of the drop-in.

    Attributes:
        view: folders of a farm view, which the shim mounts as a whole.
    """

    __slots__ = ("compat", "folders", "view")

    def __init__(
        self, compat: list[str], folders: list[str], view: list[str] | None = None
    ) -> None:
        self.compat = compat
        self.folders = folders
        self.view = view or []

    @property
    def all(self) -> list[str]:
        """All folders."""
        return [*self.compat, *self.view, *self.folders]

    def render(self) -> bytes:
        """Return the content of the file, empty without folders.

        Raises:
            UnsafePathError: a folder's name has a special meaning in the file.
        """
        lines: list[str] = []
        groups = {COMPAT_MARK: self.compat, VIEW_MARK: self.view, FOLDERS_MARK: self.folders}
        for mark, folders in groups.items():
            for folder in folders:
                if not is_plain(folder):
                    raise UnsafePathError(f"folder {folder!r} is not valid in {PATH}")
            if folders:
                lines += [mark, *folders]
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def is_plain(folder: str) -> bool:
    """Report whether a folder's name has no special characters for dynamic linkers."""
    return folder.startswith("/") and not any(c.isspace() or c in "#=*?[:,;\0" for c in folder)


def read(root: Root) -> LinkerConf:
    """Return the drop-in of an earlier start of the container; empty if there is none."""
    conf = LinkerConf([], [])
    data = root.read_file(PATH, LIMIT)
    if data is None:
        return conf
    group = conf.folders
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        if line == COMPAT_MARK:
            group = conf.compat
        elif line == VIEW_MARK:
            group = conf.view
        elif line.startswith("#"):
            group = conf.folders
        elif is_plain(line):
            group.append(line)
    # The file may come from the image.
    del conf.compat[COMPAT_LIMIT:], conf.folders[FOLDER_LIMIT:], conf.view[COMPAT_LIMIT:]
    return conf
