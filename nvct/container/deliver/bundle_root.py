# SPDX-License-Identifier: Apache-2.0
"""A container's root before the container exists, for the layouts that put files into it.

Hot; loaded with either layout that does. It is opened once, in this process's own mount namespace:
the mounts of config.json are not there yet, and what lies below one of them is left alone.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.container.rootfs.changes import Changes
from nvct.errors import NvctError
from nvct.linux.root import Root
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.plan.model import Compat, Edits
    from nvct.container.rootfs.mount_points import ConfigMounts
    from nvct.linux.kernel import Kernel
    from nvct.oci.bundle import Bundle


class UnfitError(Exception):
    """Why a layout is not for a container."""


class Layout:
    """What is decided about a container's root, which it has when it starts.

    Attributes:
        edits: what config.json gets.
        note: what was decided.
    """

    __slots__ = ("_bundle", "_changes", "_note", "_root", "edits", "note")

    def __init__(self, bundle: Bundle, root: Root, note: Callable[[str], None]) -> None:
        """Keep them; the root is closed with the layout."""
        self._root = root
        self._bundle = bundle
        self._note = note
        self._changes = Changes(root)
        self.edits: list[Edits] = []
        self.note = ""

    def __del__(self) -> None:
        self._root.close()

    def write(self, kernel: Kernel) -> None:
        """Change the root; where that fails, edits and note are for one that is as it was."""
        try:
            self._changes.write(kernel, self._bundle.host_root() or (0, 0))
        except (NvctError, OSError) as error:
            self._leave_root(reason(error))

    def _leave_root(self, why: str) -> None:
        raise NotImplementedError


def reason(error: Exception) -> str:
    """Return why something cannot be, as a part of a sentence."""
    if isinstance(error, OSError):
        return f"{error.filename or 'the root'}: {error.strerror}"
    return error.message if isinstance(error, NvctError) else str(error)


def root_path(bundle: Bundle, folder: str) -> str:
    """Return where a container's root is on the host.

    Raises:
        UnfitError: config.json does not say.
    """
    path = bundle.document.value(("root", "path"))
    if not isinstance(path, str) or not path:
        raise UnfitError("config.json names no root")
    return path if path.startswith("/") else f"{folder or '.'}/{path}"


def open_root(bundle: Bundle, folder: str) -> Root:
    """Open a container's root.

    Raises:
        UnfitError: there is none, or it is the host's.
        HostError: there is no such directory.
    """
    root = Root.open(root_path(bundle, folder))
    root.label = "the container"
    root.budget = bundle
    own, host = posix.fstat(root.fd), posix.stat("/")
    if (own.st_dev, own.st_ino) == (host.st_dev, host.st_ino):
        root.close()
        raise UnfitError("the container's root is the host's")
    return root


def why_unwritable(bundle: Bundle, folder: str, root: Root, kernel: Kernel) -> str:
    """Return why the files of a root, which is not read-only, are not ours to change."""
    from nvct.container.rootfs import mount_points

    if bundle.host_root() is None:
        return "the user namespace has no root"
    if not mount_points.is_private(root, folder or ".", kernel):
        return f"{root_path(bundle, folder)} is no root of this container's own"
    return ""


def compat_folder(
    root: Root, covered: ConfigMounts, versions: Compat, note: Callable[[str], None]
) -> str:
    """Return the folder of the image's CUDA compatibility libraries, "" where they are not used.

    Args:
        root: the container's.
        covered: what the mounts of config.json cover.
        versions: of the host, {} where there is no choice; and where images have the libraries.
        note: told of what cannot be used.

    Raises:
        UnfitError: what the container will see there is not seen yet.
    """
    if not versions:
        return ""
    folder = versions.get("folder") or paths.COMPAT_FOLDER
    over = covered.about(folder) or covered.about(root.real(folder))
    if over:
        raise UnfitError(f"{over} is a mount: CUDA compatibility libraries may be there")
    if root.lstat(folder) is None:
        return ""
    from nvct.container.rootfs import compat

    return compat.choose(root, versions, note) or ""


def add_profile(changes: Changes, covered: ConfigMounts, minors: list[int]) -> None:
    """Add the application profile, which tells EGL what GPUs there are, if there are any."""
    from nvct.container.rootfs import profile

    if minors and not covered.above(profile.PATH):
        profile.add(changes, minors)


def gpu_minors(edits: list[Edits]) -> list[int]:
    """Return the minors of the GPU nodes that edits bring."""
    from nvct.container.rootfs import profile

    minors: list[int] = []
    for node in [node for one in edits for node in one["nodes"]]:
        if profile.is_gpu(node["path"].removeprefix("/dev/")):
            found = jsontext.parse(node["node"], "a plan")
            minors.append(found["minor"])  # type: ignore[index,call-overload,arg-type]  # our compiler's
    return minors
