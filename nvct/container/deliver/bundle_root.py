# SPDX-License-Identifier: Apache-2.0
"""A container's root before the container exists, for the layouts that put files into it.

Hot; loaded with such a layout. The root is opened once, in the mount namespace of this process.
The mounts of config.json do not exist yet, so files below their destinations are not changed.
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
    """The reason why a layout does not fit a container."""


class Layout:
    """A layout for one container: changes of its root and of config.json.

    Attributes:
        edits: the changes of config.json.
        note: the decision as a sentence.
    """

    __slots__ = ("_bundle", "_changes", "_note", "_root", "edits", "note")

    def __init__(self, bundle: Bundle, root: Root, note: Callable[[str], None]) -> None:
        """Keep the arguments; the root is closed with the layout."""
        self._root = root
        self._bundle = bundle
        self._note = note
        self._changes = Changes(root)
        self.edits: list[Edits] = []
        self.note = ""

    def __del__(self) -> None:
        self._root.close()

    def write(self, kernel: Kernel) -> None:
        """Change the root; if that fails, set edits and note for an unchanged root."""
        try:
            self._changes.write(kernel, self._bundle.host_root() or (0, 0))
        except (NvctError, OSError) as error:
            self._leave_root(reason(error))

    def _leave_root(self, why: str) -> None:
        """Set edits and note for an unchanged root. Abstract: the hot side imports no abc."""
        raise NotImplementedError


def reason(error: Exception) -> str:
    """Return the message of an error, as a part of a sentence."""
    if isinstance(error, OSError):
        return f"{error.filename or 'the root'}: {error.strerror}"
    return error.message if isinstance(error, NvctError) else str(error)


def root_path(bundle: Bundle, folder: str) -> str:
    """Return the path of a container's root on the host.

    Raises:
        UnfitError: config.json has no root.path.
    """
    path = bundle.document.value(("root", "path"))
    if not isinstance(path, str) or not path:
        raise UnfitError("config.json names no root")
    return path if path.startswith("/") else f"{folder or '.'}/{path}"


def open_root(bundle: Bundle, folder: str) -> Root:
    """Open a container's root.

    Raises:
        UnfitError: config.json names no root, or the root is the host's.
        HostError: the directory does not exist.
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
    """Return why files of a root that is not read-only must not be changed, "" if they may."""
    from nvct.container.rootfs import mount_points

    if bundle.host_root() is None:
        return "the user namespace has no root"
    if not mount_points.is_private(root, folder or ".", kernel):
        return f"{root_path(bundle, folder)} is no root of this container's own"
    return ""


def compat_folder(
    root: Root, covered: ConfigMounts, versions: Compat, note: Callable[[str], None]
) -> str:
    """Return the folder of the image's CUDA compatibility libraries, "" if they are not used.

    Args:
        root: of the container.
        covered: the destinations of the mounts in config.json.
        versions: of the host's driver and its CUDA, and the libraries' folder in images; {} if
            the image's libraries are never used.
        note: receives sentences about unusable libraries.

    Raises:
        UnfitError: a mount that does not exist yet may contain the libraries.
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
    """Add the application profile, which lists the GPUs for EGL; nothing without GPUs."""
    from nvct.container.rootfs import profile

    if minors and not covered.above(profile.PATH):
        profile.add(changes, minors)


def gpu_minors(edits: list[Edits]) -> list[int]:
    """Return the minor numbers of the GPU nodes in edits."""
    from nvct.container.rootfs import profile

    minors: list[int] = []
    for node in [node for one in edits for node in one["nodes"]]:
        if profile.is_gpu(node["path"].removeprefix("/dev/")):
            found = jsontext.parse(node["node"], "a plan")
            minors.append(found["minor"])  # type: ignore[index,call-overload,arg-type]  # our compiler's
    return minors
