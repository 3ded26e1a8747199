# SPDX-License-Identifier: Apache-2.0
"""Delivers compiled edits into a live container.

Device rules and detached copies of the mounts come first, because they need the host's
namespaces. Then the hook enters the container's namespaces permanently and changes its root.
After a failure the container is incomplete, and the runtime deletes it.
"""

from __future__ import annotations

import posix

from nvct.container.cdi_hook import apply
from nvct.container.cdi_hook import main as hooks
from nvct.container.cdi_hook.context import Context
from nvct.container.plan import hook_command as flags
from nvct.container.plan.hook_command import Options
from nvct.container.prestart import mounts
from nvct.container.prestart.container import is_rootless
from nvct.container.prestart.mounts import Tree
from nvct.errors import HostError, NvctError, RequestError, UnsafePathError
from nvct.linux import constants as c
from nvct.linux.device_nodes import node as host_node
from nvct.linux.files import discard, lstat_or_none, split, temporary_name
from nvct.linux.kernel import KERNEL
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nvct.config.model import Config
    from nvct.container.plan.model import Edits
    from nvct.container.prestart.container import Container
    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root
    from nvct.oci.bundle import Bundle

DEFAULT_MODE = 0o666
ST_NODEV = 4
BOUND = c.MOUNT_ATTR_NOSUID | c.MOUNT_ATTR_NOEXEC
IN_CONTAINER = "createContainer"
"""The hook point that `deliver` runs itself: it follows prestart, in the same namespaces."""


class Node:
    """A device node in the container's live /dev.

    It is created with mknod(2). In a user namespace new nodes do not work, so the host's node is
    bind-mounted. An existing node with the same number is not changed: /dev may be the host's own.
    """

    __slots__ = ("device", "gid", "host", "mode", "path", "uid")

    def __init__(self, text: str, uid: int, gid: int, host: str = "") -> None:
        """Read an entry for linux.devices; missing owners are those of the container's process.

        `host` is the path of the host's node, "" if the plan has none.
        """
        entry: dict[str, Any] = jsontext.parse(text, "a plan")  # type: ignore[assignment]  # our compiler's
        self.path: str = entry["path"]
        self.host = host
        if entry["type"] not in ("c", "u"):
            raise RequestError(f"{self.path} is not a character device; hooks make no others")
        self.device = posix.makedev(entry["major"], entry["minor"])
        self.mode: int = entry.get("fileMode", DEFAULT_MODE) & 0o777
        self.uid: int = entry.get("uid", uid)
        self.gid: int = entry.get("gid", gid)

    @property
    def numbers(self) -> str:
        """The device number as MAJOR:MINOR."""
        return f"{posix.major(self.device)}:{posix.minor(self.device)}"

    def make(self, root: Root, kernel: Kernel) -> None:
        """Create the node under a temporary name, then rename it; HostError, UnsafePathError."""
        parent, name = split(self.path)
        folder = root.dir_fd(parent, create=True, kernel=kernel)
        try:
            status = lstat_or_none(name, folder)
            kind = status.st_mode & c.S_IFMT if status else 0
            if status and kind == c.S_IFCHR and status.st_rdev == self.device:
                return
            if kind == c.S_IFDIR:
                raise UnsafePathError(f"{self.path} in the container is a directory")
            if posix.fstatvfs(folder).f_flag & ST_NODEV:
                raise HostError(f"{parent} in the container is mounted nodev: no GPU works there")
            self._make(name, folder, kernel)
        except OSError as error:
            raise HostError(
                f"cannot make {self.path} ({self.numbers}) in the container: {error.strerror}"
            ) from error
        finally:
            posix.close(folder)

    def _make(self, name: str, folder: int, kernel: Kernel) -> None:
        temporary = temporary_name()
        kernel.mknod(temporary, c.S_IFCHR | 0o600, self.device, dir_fd=folder)
        try:
            kernel.lchown(temporary, self.uid, self.gid, dir_fd=folder)
            kernel.chmod(temporary, self.mode, dir_fd=folder)  # mknod applies the umask
            kernel.rename(temporary, name, source_dir_fd=folder, target_dir_fd=folder)
        except BaseException:
            discard(temporary, folder, kernel)
            raise

    def take(self, dev_root: str, kernel: Kernel) -> Tree:
        """Return a mount of the host's node, below `dev_root`, for the container.

        Raises HostError if the host lacks the node, or it has another device number.
        """
        path = self.host or dev_root.rstrip("/") + self.path
        host_device = host_node(path)
        if host_device is None or posix.makedev(*host_device[:2]) != self.device:
            raise HostError(
                f"{path} is not device {self.numbers}, which the container is to get",
                hint="nvidia-ctk system create-device-nodes makes it",
            )
        return Tree(path, self.path, BOUND, kernel, recursive=False)


def collect(edits: list[Edits], uid: int, gid: int) -> list[Node]:
    """Return the nodes of edits, the last of each path; RequestError for a block device."""
    nodes_by_path = {node["path"]: node for edit in edits for node in edit["nodes"]}
    return [Node(n["node"], uid, gid, n.get("host", "")) for n in nodes_by_path.values()]


class _Inside(Context):
    """A hook's context with an open root, which stays open after the hook."""

    __slots__ = ()

    def __init__(self, options: Options, root: Root, warn: Callable[[str], None]) -> None:
        super().__init__(options, -1, warn)
        self._root = root

    def close(self) -> None:
        """Do nothing: the caller closes the root."""


def deliver(
    container: Container,
    bundle: Bundle,
    config: Config,
    env: dict[str, str],
    edits: list[Edits],
    *,
    warn: Callable[[str], None],
) -> None:
    """Deliver edits into a container (NvctError); this process stays in its namespaces."""
    actions = _actions(edits)
    works = [edit["hook"]["work"] for edit in edits if "hook" in edit]
    rootless = is_rootless()
    if not (config.cli_no_cgroups or rootless):
        _allow(container, bundle, env, warn, edits)
    devices = collect(edits, bundle.process_id("uid"), bundle.process_id("gid"))
    trees = mounts.take([mount for edit in edits for mount in edit["mounts"]], KERNEL)
    try:
        if container.userns:
            _load_all()
        if container.userns or rootless:
            trees += [node.take(config.dev_root or "/", KERNEL) for node in devices]
            devices = []
        with container.enter(KERNEL) as root:
            root.budget = bundle
            try:
                for node in devices:
                    node.make(root, KERNEL)
                for tree in trees:
                    tree.attach(root, KERNEL)
                for work in works:
                    apply.do(_Inside(Options(), root, warn), work)
                for name, options in actions:
                    hooks.function(name)(_Inside(options, root, warn))
            except OSError as error:
                path = error.filename or "the container"
                raise HostError(
                    f"cannot change {path} in the container: {error.strerror}"
                ) from error
    finally:
        mounts.close(trees)


def _allow(
    container: Container,
    bundle: Bundle,
    env: dict[str, str],
    warn: Callable[[str], None],
    edits: list[Edits],
) -> None:
    from nvct.container.prestart import rules

    texts = [node["rule"] for edit in edits for node in edit["nodes"] if node["rule"]]
    elements = bundle.document.elements(("linux", "resources", "devices"))
    configured = [element.value for element in elements if isinstance(element.value, dict)]
    rules.allow(texts, container.pid, configured, env=env, warn=warn, process=container.process)


def _load_all() -> None:
    """Import the modules for the container: its user namespace may deny access to their files."""
    for name in hooks.HOOKS:
        hooks.function(name)
    from nvct.container.rootfs import compat
    from nvct.linux import files, mountinfo

    del compat, files, mountinfo


def _actions(edits: list[Edits]) -> list[tuple[str, Options]]:
    """Return the names and options of the hooks in edits; nvct implements these hooks itself."""
    actions: list[tuple[str, Options]] = []
    for edit in edits:
        for feature, is_needed in (
            ("network devices", edit["net"]),
            ("an RDT class", edit["rdt"]),
        ):
            if is_needed:
                raise RequestError(
                    f"a prestart hook cannot give {feature}", hint="use --runtime=nvidia"
                )
        for point, texts in edit["hooks"].items():
            for text in texts:
                hook: dict[str, Any] = jsontext.parse(text, "a plan")  # type: ignore[assignment]  # our compiler's
                actions.append(_action(point, hook["path"], hook.get("args", [])))
    return actions


def _action(point: str, path: str, args: list[str]) -> tuple[str, Options]:
    words = args[1:]
    while words and words[0] not in hooks.HOOKS:
        del words[0]  # nvidia-ctk hook NAME; --quiet NAME
    if point != IN_CONTAINER or not words:
        raise RequestError(
            f"a prestart hook cannot run {path} at {point}", hint="use --runtime=nvidia"
        )
    try:
        return words[0], flags.read(words[1:], hooks.HOOKS[words[0]] | hooks.COMMON)
    except NvctError as error:
        raise HostError(f"a plan's hook {words[0]}: {error.message}") from error
