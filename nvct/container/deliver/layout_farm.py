# SPDX-License-Identifier: Apache-2.0
"""Layout "farm": the driver by one mount of a view, and a few files in the root.

Hot. plan["farm"] lists the files of the view (nvct.farm.table). This module selects the files for
a container and makes them visible to its programs: entries in ld.so.cache before others of the
same name, a drop-in that a later ldconfig reads, links where programs expect files. All changes
are made before the container exists, so no hook is needed. A container that this layout does not
fit gets the classic layout.

Environment variables are the last resort, used if the root, or /etc in it, is not writable: exec
sessions do not get the variables of a shim, and setuid programs ignore LD_LIBRARY_PATH.
"""

from __future__ import annotations

from nvct.container.deliver.bundle_root import Layout, UnfitError, gpu_minors, open_root, reason
from nvct.container.deliver.farm_table import FarmEntries, extended
from nvct.container.plan.model import merge, no_edits, no_work
from nvct.container.rootfs import linker, mount_points, view_links
from nvct.container.rootfs.view_links import BESIDE_COMPAT, LAST_RESORT, MOUNT_POINT
from nvct.errors import LdCacheError, NvctError, UnsafePathError
from nvct.linux.kernel import KERNEL
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.plan.model import Edits, Farm, FarmEdits
    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root
    from nvct.oci.bundle import Bundle

OPTIONS = '["rbind","ro","nosuid","nodev","rprivate"]'
STORES = ("/nix/store", "/gnu/store")
"""Stores with dynamic linkers that do not read the image's ld.so.cache."""
SEARCH_PATH = "LD_LIBRARY_PATH="
WITH_PROFILE = ("graphics", "display")


def decide(
    bundle: Bundle,
    folder: str,
    edits: list[Edits],
    note: Callable[[str], None],
    *,
    kernel: Kernel = KERNEL,
) -> Layout | None:
    """Return a layout that mounts the driver's view, None if it does not fit the container."""
    farm = next((edit["farm"] for edit in edits if "farm" in edit), None)
    if farm is None:
        return None
    try:
        _check(farm["table"], bundle)
        layout = _FarmLayout(bundle, folder, open_root(bundle, folder), farm, note)
        layout.decide(edits, kernel)
    except (UnfitError, NvctError, OSError) as error:
        note(f"layout classic: {reason(error)}")
        return None
    return layout


def _check(table: Farm, bundle: Bundle) -> None:
    if not table["view"]:
        raise UnfitError(table["why"])
    if table.get("staged") and bundle.has_user_namespace():
        # crun before 1.9 does not bind the mounts below a mount.
        raise UnfitError("in a user namespace crun before 1.9 shows no file of a staged view")


class _FarmLayout(Layout):
    __slots__ = (
        "_above", "_common", "_entries", "_hooks", "_is_again", "_linked", "_other_edits", "_work",
        "compat", "env_why", "mount_point",
    )  # fmt: skip

    def __init__(
        self, bundle: Bundle, folder: str, root: Root, farm: FarmEdits, note: Callable[[str], None]
    ) -> None:
        table = farm["table"]
        super().__init__(bundle, folder, root, _destinations(bundle, table["view"]), note)
        self._entries = FarmEntries(table, farm["capabilities"])
        self._common = farm["common"]
        self._hooks = [edit["hook"] for edit in farm["common"] if "hook" in edit]
        self._work = merge([hook["work"] for hook in self._hooks])
        self._linked: list[str] = []
        self._above: dict[str, bool] = {}
        self._is_again = False
        self.mount_point = ""
        self.compat = ""
        self.env_why = ""  # why programs find the driver by environment variables, "" if by files
        self._other_edits: list[Edits] = []

    # Decision: no changes.

    def decide(self, edits: list[Edits], kernel: Kernel) -> None:
        """Decide the mount point of the view and the changes of the root and of config.json.

        Raises UnfitError if the layout does not fit this container, and NvctError or OSError if
        the root cannot be read.
        """
        self._decide_root(edits, kernel)
        common = [id(edit) for edit in self._common]
        self._other_edits = [edit for edit in edits if id(edit) not in common]
        self.edits = self._edits()
        self.summary = f"layout farm at {self.mount_point}"

    def _decide_root(self, edits: list[Edits], kernel: Kernel) -> None:
        self.compat = self._compat_folder(self._work["compat"])
        read_only = mount_points.is_read_only(self._root)
        self.mount_point = self._choose_mount_point(read_only=read_only)
        musl, glibc = linker.musl_path(self._root), linker.has_glibc(self._root)
        if not musl:
            self._refuse_own_linker()
        self._refuse_hidden_drop_in()
        if not (musl or glibc):  # all programs are static: none can use a library
            return
        self.env_why = "the root is read-only" if read_only else self._why_unwritable(kernel)
        if self.env_why:
            return
        over = self._covered.above(linker.CACHE)
        try:
            if over:
                self.env_why = f"{over} is a mount"
            else:
                if musl:  # the driver needs glibc: the image must have a layer such as gcompat
                    linker.add_musl(self._changes, musl, [f"{self.mount_point}/lib64"])
                if glibc:
                    self._add_glibc()
        except (LdCacheError, UnsafePathError) as error:
            self.env_why = error.message
        self._find_links()
        if self._work["profile"] and any(self._entries.has(name) for name in WITH_PROFILE):
            self._add_profile(gpu_minors(edits))

    def _refuse_own_linker(self) -> None:
        """Refuse images whose programs find libraries only in the distribution's own folders."""
        root = self._root
        if linker.has_loader(root) and linker.library_folder(root):
            return
        for store in STORES:
            if root.lstat(store) is not None:
                raise UnfitError(f"the image has a dynamic linker of its own below {store}")
        values = [e.partition("=")[2] for e in self._bundle.env if e.startswith(SEARCH_PATH)]
        folders = values[-1].split(":") if values and values[-1] else []
        if folders and f"{self.mount_point}/lib64" not in [
            folder.rstrip("/") for folder in folders
        ]:
            raise UnfitError(
                "the image has no dynamic linker at the usual place, and LD_LIBRARY_PATH does not"
                f" name {self.mount_point}/lib64"
            )

    def _refuse_hidden_drop_in(self) -> None:
        """Refuse containers in which a later ldconfig would not find the driver."""
        over = self._covered.above(linker.CONF)
        folder = self._root.resolve(linker.CONF.rpartition("/")[0])
        if folder and not over:
            over = self._covered.above(folder)
        if over and not self._covered.above(linker.CACHE):
            raise UnfitError(f"{over} is a mount: a later ldconfig would drop the driver")

    def _choose_mount_point(self, *, read_only: bool) -> str:
        path = BESIDE_COMPAT if self.compat else MOUNT_POINT
        try:
            resolved = self._root.real(path)
            over = self._covered.about(resolved) or self._covered.about(path)
            if over:
                raise UnfitError(f"{over} is a mount of the container's own")
            allowed = () if self.compat else ("drv",)
            exists = mount_points.mount_point(self._root, resolved, allowed)
        except UnsafePathError as error:
            raise UnfitError(error.message) from error
        if exists or not read_only:
            return path
        under = self._covered.about(LAST_RESORT)
        if under != "/dev" or not self._has_own_dev():
            raise UnfitError(f"the root is read-only and has no folder {path}")
        return LAST_RESORT

    def _has_own_dev(self) -> bool:
        return any(
            mount.get("type") == "tmpfs" and mount.get("destination") == "/dev"
            for mount in self._bundle.mounts
        )

    def _add_glibc(self) -> None:
        libraries = self._entries.at("cache", self.mount_point)
        libraries_32 = self._entries.of_32_bits(self.mount_point)
        self._is_again = view_links.add_cache(
            self._changes, self.mount_point, libraries, libraries_32, self.compat, self._note
        )

    def _find_links(self) -> None:
        """Add links that programs expect and links that replace mounts; remove old links."""
        links = view_links.placed(self._root, self._entries.links())
        singles = {
            mount[0]: target
            for mount, target in self._entries.singles()
            if target and not self._is_in_view(mount[0])
        }
        linked, any_exists = self._changes.link_all(
            (f"{self.mount_point}/{target}", path)
            for path, target in sorted({**links, **singles}.items())
            if not self._is_covered(path)
        )
        self._linked = [path for path in linked if path in singles]
        missing = sorted(set(links) - set(linked))
        if missing:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            self._note(f"cannot make link {missing[0]}{more}")
        if any_exists or self._is_again:
            folders = [mount[0].rpartition("/")[0] for mount, _ in self._entries.singles()]
            stale = view_links.left_behind(self._root, folders, linked)
            self._changes.removed += [path for path in stale if not self._is_covered(path)]

    def _is_covered(self, path: str) -> bool:
        folder = path.rpartition("/")[0]
        if folder not in self._above:
            self._above[folder] = bool(self._covered.above(folder or "/"))
        return self._above[folder] or path in self._covered.targets

    def _leave_root(self, why: str) -> None:
        """Use environment variables, because no file can be written."""
        self.env_why = why
        self._linked.clear()
        self.edits = self._edits()

    # Changes of config.json.

    def _edits(self) -> list[Edits]:
        edits = no_edits()
        for common in self._common:
            edits["nodes"] += common["nodes"]
            edits["gids"] += common["gids"]
        edits["env"] = self._env()
        source = jsontext.quote(self._entries.table["view"])
        view = f'{{"destination":"{self.mount_point}","source":{source},"options":{OPTIONS}}}'
        edits["mounts"] = [*self._single_mounts(), [self.mount_point, view]]
        if self._entries.table["params"]:
            for hook in self._hooks[:1]:
                edits["hook"] = {**hook, "work": {**no_work(), "params": True}}
        return [edits, *self._other_edits]

    def _single_mounts(self) -> list[list[str]]:
        """Return the separate mounts whose mount point exists or can be created."""
        mounts = [
            mount
            for mount in self._entries.of("mounts")
            if mount[0] not in self._linked and not self._is_in_view(mount[0])
        ]
        if not mount_points.is_read_only(self._root):
            return mounts
        possible = [m for m in mounts if self._covered.above(m[0]) or self._root.stat(m[0])]
        for mount in mounts:
            if mount not in possible:
                self._note(f"no {mount[0]}: the root is read-only")
        return possible

    def _is_in_view(self, path: str) -> bool:
        """Report whether a path is in the view, which has such a file then (`nvct.farm.model`)."""
        return path.startswith(f"{self.mount_point}/")

    def _env(self) -> list[str]:
        variables = self._entries.env(self.mount_point)
        if self.env_why:
            self._note(f"driver in LD_LIBRARY_PATH; exec sessions lack it: {self.env_why}")
            folders = [self.compat, f"{self.mount_point}/lib64"]
            variables.append(extended(self._bundle.env, "LD_LIBRARY_PATH", *folders))
            variables.append(extended(self._bundle.env, "PATH", f"{self.mount_point}/bin"))
        return variables


def _destinations(bundle: Bundle, view: str) -> list[str]:
    """Return the destinations of config.json, without the view of an earlier create."""
    views = view.rpartition("/")[0] + "/"
    destinations = []
    for mount in bundle.mounts:
        destination, source = mount.get("destination"), mount.get("source")
        is_view = isinstance(source, str) and source.startswith(views)
        if isinstance(destination, str) and not is_view:
            destinations.append(destination)
    return destinations
