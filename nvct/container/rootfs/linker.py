# SPDX-License-Identifier: Apache-2.0
"""The dynamic linker of an image and its search paths.

glibc has a cache and default folders, musl a path file; a static image has no dynamic linker. By a
drop-in, ldconfig in the container finds injected libraries: the file has a fixed name, so that a
restarted container has only one, and because of `00-` it precedes the image's own folders. The
folder of CUDA forward compatibility comes first.
"""

from __future__ import annotations

import posix

from nvct.container.rootfs.changes import Changes
from nvct.errors import UnsafePathError
from nvct.linux.constants import S_IFDIR, S_IFMT
from nvct.linux.root import Root

CACHE = "/etc/ld.so.cache"
LIBC = "libc.so.6"
LOADERS = {
    "x86_64": "/lib64/ld-linux-x86-64.so.2",
    "aarch64": "/lib/ld-linux-aarch64.so.1",
    "i386": "/lib/ld-linux.so.2",
}
FOLDERS_32 = (
    "/usr/lib/i386-linux-gnu", "/lib/i386-linux-gnu", "/usr/lib32", "/lib32", "/usr/lib", "/lib",
)  # fmt: skip
MUSL_DEFAULT = ("/lib", "/usr/local/lib", "/usr/lib")  # musl, ldso/dynlink.c
MUSL_LIMIT = 1 << 16


def has_glibc(root: Root) -> bool:
    """Report whether programs of the image can use glibc's dynamic linker."""
    return root.lstat(CACHE) is not None or any(root.is_file(p) for p in LOADERS.values())


def has_loader(root: Root) -> bool:
    """Report whether glibc's dynamic linker for this machine is at its usual path."""
    return root.is_file(LOADERS.get(posix.uname().machine, ""))


def musl_path(root: Root) -> str:
    """Return the path file of the image's musl, "" without musl."""
    name = f"ld-musl-{posix.uname().machine}"
    return f"/etc/{name}.path" if root.is_file(f"/lib/{name}.so.1") else ""


def add_musl(changes: Changes, path: str, folders: list[str]) -> None:
    """Add folders to musl's path file, which replaces the default folders.

    Raises UnsafePathError.
    """
    data = changes.root.read_file(path, MUSL_LIMIT) or b""
    text = data.decode("utf-8", "surrogateescape")
    lines = [part for line in text.splitlines() for part in line.split(":") if part]
    existing = lines or list(MUSL_DEFAULT)
    added = [f for f in folders if f not in existing and is_plain(f)]
    if added:
        text = "\n".join([*existing, *added]) + "\n"
        changes.file(path, None, text.encode("utf-8", "surrogateescape"))


def library_folder(root: Root) -> str:
    """Return the image's folder for libraries of this machine, "" if unknown."""
    machine = posix.uname().machine
    triplet = f"{machine}-linux-gnu"
    return _library_folder(
        root,
        (f"/usr/lib/{triplet}", f"/lib/{triplet}", "/usr/lib64", "/lib64", "/usr/lib", "/lib"),
    )


def library_folder_32(root: Root) -> str:
    """Return the image's folder for 32-bit x86 libraries, "" if unknown.

    Distributions without lib64 (Arch) have 64-bit libraries in the 32-bit folder of others.
    """
    folder = _library_folder(root, FOLDERS_32)
    folder_64 = library_folder(root)
    if folder and folder_64 and root.resolve(folder) == root.resolve(folder_64):
        return ""
    return folder


def _library_folder(root: Root, folders: tuple[str, ...]) -> str:
    """Return the first folder that has libc, or the folder of the same name below /usr.

    If /usr is not merged (Debian up to 11, Ubuntu 18.04), libc is in /lib, but packages have
    their libraries below /usr, where compilers and programs look for them.
    """
    for folder in folders:
        if root.lstat(f"{folder}/{LIBC}") is not None:
            below = f"/usr{folder}"
            return below if folder.startswith("/lib") and is_folder(root, below) else folder
    return ""


def is_folder(root: Root, path: str) -> bool:
    """Report whether a path in the image is a folder, or leads to one."""
    status = root.stat(path)
    return status is not None and status.st_mode & S_IFMT == S_IFDIR


CONF = "/etc/ld.so.conf.d/00-nvct.conf"
MAIN_CONF = "/etc/ld.so.conf"
MAIN_CONF_TEXT = b"include /etc/ld.so.conf.d/*.conf\n"
COMPAT_MARK = "# CUDA forward compatibility"
VIEW_MARK = "# view of the driver"
FOLDERS_MARK = "# driver"
CONF_LIMIT = 1 << 16
COMPAT_LIMIT = 4
FOLDER_LIMIT = 256


class LinkerConf:
    """The content of the drop-in."""

    __slots__ = ("compat", "folders", "view")

    def __init__(
        self, compat: list[str], folders: list[str], view: list[str] | None = None
    ) -> None:
        self.compat = compat
        self.folders = folders
        self.view = view or []  # folders of a farm view, which the shim mounts as a whole

    @property
    def all(self) -> list[str]:
        """All folders."""
        return [*self.compat, *self.view, *self.folders]

    def render(self) -> bytes:
        """Return the file's content, "" without folders; UnsafePathError for a special name."""
        lines: list[str] = []
        groups = {COMPAT_MARK: self.compat, VIEW_MARK: self.view, FOLDERS_MARK: self.folders}
        for mark, folders in groups.items():
            for folder in folders:
                if not is_plain(folder):
                    raise UnsafePathError(f"folder {folder!r} is not valid in {CONF}")
            if folders:
                lines += [mark, *folders]
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def is_plain(folder: str) -> bool:
    """Report whether a folder's name has no special characters for dynamic linkers."""
    return folder.startswith("/") and not any(c.isspace() or c in "#=*?[:,;\0" for c in folder)


def read_conf(root: Root) -> LinkerConf:
    """Return the drop-in of an earlier start of the container; empty if there is none."""
    conf = LinkerConf([], [])
    data = root.read_file(CONF, CONF_LIMIT)
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


def add_conf(changes: Changes, conf: LinkerConf) -> None:
    """Add the drop-in and the file that includes it; or remove the drop-in.

    Raises UnsafePathError.
    """
    root, data = changes.root, conf.render()
    current = root.read_file(CONF, CONF_LIMIT)
    if not data:
        changes.removed += [CONF] if current is not None else []
        return
    changes.file(CONF, current, data)
    if root.lstat(MAIN_CONF) is None:
        changes.file(MAIN_CONF, None, MAIN_CONF_TEXT)
