# SPDX-License-Identifier: Apache-2.0
"""A container's root before the container exists, for the layouts that put files into it.

Hot; loaded with such a layout. The root is opened once, in the mount namespace of this process.
The mounts of config.json do not exist yet, so files below their destinations are not changed.
"""

from __future__ import annotations

from nvct import paths
from nvct.container.rootfs import mount_points
from nvct.container.rootfs.changes import Changes
from nvct.errors import NvctError, UnsafePathError
from nvct.linux.root import Root
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvct.container.plan.model import Compat, Edits
    from nvct.linux.kernel import Kernel
    from nvct.oci.bundle import Bundle


class UnfitError(Exception):
    """The reason why a layout does not fit a container."""


class Layout:
    """A layout for one container: changes of its root, which it closes, and of config.json.

    `folder` is the bundle's, "" for the working directory; `destinations` are those of mounts that
    hide files of the root.
    """

    __slots__ = (
        "_bundle", "_changes", "_covered", "_folder", "_note", "_root", "edits", "summary",
    )  # fmt: skip

    def __init__(
        self,
        bundle: Bundle,
        folder: str,
        root: Root,
        destinations: Iterable[str],
        note: Callable[[str], None],
    ) -> None:
        self._root = root
        self._bundle = bundle
        self._folder = folder
        self._note = note
        self._changes = Changes(root)
        self._covered = mount_points.ConfigMounts(root, destinations)
        self.edits: list[Edits] = []
        self.summary = ""

    def __del__(self) -> None:
        self._root.close()

    def write(self, kernel: Kernel) -> None:
        """Change the root; if that fails, set edits and summary for an unchanged root."""
        try:
            self._changes.write(kernel, self._bundle.host_root() or (0, 0))
        except (NvctError, OSError) as error:
            self._leave_root(reason(error))

    def _leave_root(self, why: str) -> None:
        """Set edits and summary for an unchanged root. Abstract: the hot side imports no abc."""
        raise NotImplementedError

    def _why_unwritable(self, kernel: Kernel) -> str:
        """Return why files of a root that is not read-only must not be changed, else ""."""
        if self._bundle.host_root() is None:
            return "the user namespace has no root"
        if not mount_points.is_private(self._root, self._folder or ".", kernel):
            path = root_path(self._bundle, self._folder)
            return f"{path} is not a root of this container alone"
        return ""

    def _compat_folder(self, versions: Compat) -> str:
        if not versions:
            return ""
        root, covered = self._root, self._covered
        folder = versions.get("folder") or paths.COMPAT_FOLDER
        over = covered.about(folder) or covered.about(root.real(folder))
        if over:
            raise UnfitError(f"{over} is a mount: CUDA compatibility libraries may be there")
        if root.lstat(folder) is None:
            return ""
        from nvct.container.rootfs import compat

        return compat.choose(root, versions, self._note) or ""

    def _add_profile(self, minors: list[int]) -> None:
        from nvct.container.rootfs import profile

        if minors and not self._covered.above(profile.PATH):
            profile.add(self._changes, minors)


def reason(error: Exception) -> str:
    """Return the message of an error, as a part of a sentence."""
    if isinstance(error, OSError):
        return f"{error.filename or 'the root'}: {error.strerror}"
    return error.message if isinstance(error, NvctError) else str(error)


def root_path(bundle: Bundle, folder: str) -> str:
    """Return the path of a container's root on the host; UnfitError without root.path."""
    path = bundle.document.value(("root", "path"))
    if not isinstance(path, str) or not path:
        raise UnfitError("config.json has no root.path")
    return path if path.startswith("/") else f"{folder or '.'}/{path}"


def open_root(bundle: Bundle, folder: str) -> Root:
    """Open a container's root; UnfitError for none or the host's, HostError if it is missing."""
    try:
        return Root.of_container(root_path(bundle, folder), bundle)
    except UnsafePathError as error:
        raise UnfitError(error.message) from error


def gpu_minors(edits: list[Edits]) -> list[int]:
    """Return the minor numbers of the GPU nodes in edits."""
    from nvct.container.rootfs import profile

    minors: list[int] = []
    for node in [node for edit in edits for node in edit["nodes"]]:
        if profile.is_gpu(node["path"].removeprefix("/dev/")):
            device = jsontext.parse(node["node"], "a plan")
            minors.append(device["minor"])  # type: ignore[index,call-overload,arg-type]  # our compiler's
    return minors
