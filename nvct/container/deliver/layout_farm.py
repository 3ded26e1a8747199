# SPDX-License-Identifier: Apache-2.0
"""Layout "farm": the driver by one mount of a view, and a few files in the root.

Hot. plan["farm"] lists the files of the view (nvct.compile.farm_table). This module selects those
of a container and makes them visible to its programs: entries in ld.so.cache before others of the
same name, a drop-in that a later ldconfig reads, links where programs expect files. All changes
are made before the container exists, so no hook is needed. A container that this layout does not
fit gets the classic layout.

Environment variables are the last resort, used if the root, or /etc in it, is not writable: exec
sessions do not get the variables of a shim, and setuid programs ignore LD_LIBRARY_PATH.
"""

from __future__ import annotations

from nvct.container.deliver.bundle_root import (
    Layout,
    UnfitError,
    add_profile,
    compat_folder,
    gpu_minors,
    open_root,
    reason,
    why_unwritable,
)
from nvct.container.deliver.farm_table import Share, extended
from nvct.container.plan.model import merge, no_edits, no_work
from nvct.container.rootfs import linker, linker_conf, mount_points, view_cache, view_links
from nvct.container.rootfs.view_links import BESIDE_COMPAT, LAST_RESORT, PLACE
from nvct.errors import LdCacheError, NvctError, UnsafePathError
from nvct.linux.kernel import KERNEL
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.plan.model import Edits, Farm, Instead
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
    """Return a layout that mounts the driver's view, None if it does not fit the container.

    Args:
        bundle: of the container.
        folder: of the bundle, "" for the working directory.
        edits: of the classic layout.
        note: receives sentences about unexpected results.
        kernel: system calls that inspect the root.
    """
    found = next((one["farm"] for one in edits if "farm" in one), None)
    if found is None:
        return None
    try:
        _check(found["table"], bundle)
        container = _Container(bundle, folder, open_root(bundle, folder), found, note)
        container.decide(edits, kernel)
    except (UnfitError, NvctError, OSError) as error:
        note(f"layout classic: {reason(error)}")
        return None
    return container


def _check(table: Farm, bundle: Bundle) -> None:
    if not table["view"]:
        raise UnfitError(table["why"])
    if table.get("staged") and bundle.has_user_namespace():
        # crun before 1.9 does not bind the mounts below a mount.
        raise UnfitError("in a user namespace crun before 1.9 shows no file of a staged view")


class _Container(Layout):
    """The layout of one container.

    Attributes:
        place: mount point of the view in the container.
        compat: folder of the image's CUDA compatibility libraries, "" if they are not used.
        env_why: why programs find the driver by environment variables, "" if by files.
    """

    __slots__ = (
        "_above", "_common", "_covered", "_folder", "_hooks", "_is_again", "_linked", "_others",
        "_share", "_work", "compat", "env_why", "place",
    )  # fmt: skip

    def __init__(
        self,
        bundle: Bundle,
        folder: str,
        root: Root,
        found: Instead,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(bundle, root, note)
        self._folder = folder
        self._share = Share(found["table"], found["capabilities"])
        self._common = found["common"]
        self._hooks = [one["hook"] for one in found["common"] if "hook" in one]
        self._work = merge([hook["work"] for hook in self._hooks])
        self._covered = mount_points.ConfigMounts(root, self._destinations())
        self._linked: list[str] = []
        self._above: dict[str, bool] = {}
        self._is_again = False
        self.place = ""
        self.compat = ""
        self.env_why = ""
        self._others: list[Edits] = []

    def _destinations(self) -> list[str]:
        """Return the destinations of config.json, without the view of an earlier create."""
        farm = self._share.table["view"].rpartition("/")[0] + "/"
        found = []
        for mount in self._bundle.mounts:
            destination, source = mount.get("destination"), mount.get("source")
            ours = isinstance(source, str) and source.startswith(farm)
            if isinstance(destination, str) and not ours:
                found.append(destination)
        return found

    # Decision: no changes.

    def decide(self, edits: list[Edits], kernel: Kernel) -> None:
        """Decide the mount point of the view and the changes of the root and of config.json.

        Raises:
            UnfitError: the layout does not fit this container.
            NvctError, OSError: the root cannot be read.
        """
        self._decide_root(edits, kernel)
        gone = [id(one) for one in self._common]
        self._others = [one for one in edits if id(one) not in gone]
        self.edits = self._edits()
        self.note = f"layout farm at {self.place}"

    def _decide_root(self, edits: list[Edits], kernel: Kernel) -> None:
        self.compat = self._find_compat()
        read_only = mount_points.is_read_only(self._root)
        self.place = self._find_place(read_only=read_only)
        musl, glibc = linker.musl_path(self._root), linker.has_glibc(self._root)
        if not musl:
            self._refuse_own_linker()
        self._refuse_hidden_drop_in()
        if not (musl or glibc):  # all programs are static: none can use a library
            return
        self.env_why = self._why_unwritable(kernel, read_only=read_only)
        if self.env_why:
            return
        over = self._covered.above(linker.CACHE)
        try:
            if over:
                self.env_why = f"{over} is a mount"
            else:
                self._add_search_paths(musl, glibc=glibc)
        except (LdCacheError, UnsafePathError) as error:
            self.env_why = error.message
        self._find_links()
        self._add_profile(edits)

    def _refuse_own_linker(self) -> None:
        """Refuse images whose programs find libraries only in the distribution's own folders.

        Raises:
            UnfitError: the usual dynamic linker or library folder is missing, and there is one of
                STORES, or LD_LIBRARY_PATH is set without the view's lib64.
        """
        root = self._root
        if linker.has_loader(root) and linker.library_folder(root):
            return
        for store in STORES:
            if root.lstat(store) is not None:
                raise UnfitError(f"the image has a dynamic linker of its own below {store}")
        values = [e.partition("=")[2] for e in self._bundle.env if e.startswith(SEARCH_PATH)]
        folders = values[-1].split(":") if values and values[-1] else []
        if folders and f"{self.place}/lib64" not in [folder.rstrip("/") for folder in folders]:
            raise UnfitError(
                "the image has no dynamic linker at the usual place, and LD_LIBRARY_PATH does not"
                f" name {self.place}/lib64"
            )

    def _refuse_hidden_drop_in(self) -> None:
        """Refuse containers in which a later ldconfig would not find the driver.

        Raises:
            UnfitError: a mount covers the path of the drop-in.
        """
        over = self._covered.above(linker_conf.PATH)
        folder = self._root.resolve(linker_conf.PATH.rpartition("/")[0])
        if folder and not over:
            over = self._covered.above(folder)
        if over and not self._covered.above(linker.CACHE):
            raise UnfitError(f"{over} is a mount: a later ldconfig would drop the driver")

    def _find_compat(self) -> str:
        """Return the folder of the image's CUDA compatibility libraries, "" if not used.

        Raises:
            UnfitError: a mount may contain the libraries.
        """
        return compat_folder(self._root, self._covered, self._work["compat"], self._note)

    def _find_place(self, *, read_only: bool) -> str:
        """Return the mount point of the view."""
        wanted = BESIDE_COMPAT if self.compat else PLACE
        try:
            there = self._root.real(wanted)
            over = self._covered.about(there) or self._covered.about(wanted)
            if over:
                raise UnfitError(f"{over} is a mount of the container's own")
            is_there = mount_points.mount_point(self._root, there, () if self.compat else ("drv",))
        except UnsafePathError as error:
            raise UnfitError(error.message) from error
        if is_there or not read_only:
            return wanted
        under = self._covered.about(LAST_RESORT)
        if under != "/dev" or not self._has_own_dev():
            raise UnfitError(f"the root is read-only and has no folder {wanted}")
        return LAST_RESORT

    def _has_own_dev(self) -> bool:
        return any(
            mount.get("type") == "tmpfs" and mount.get("destination") == "/dev"
            for mount in self._bundle.mounts
        )

    def _why_unwritable(self, kernel: Kernel, *, read_only: bool) -> str:
        """Return why files of the root must not be changed, "" if they may."""
        if read_only:
            return "the root is read-only"
        return why_unwritable(self._bundle, self._folder, self._root, kernel)

    def _add_search_paths(self, musl: str, *, glibc: bool) -> None:
        """Add the search paths of the dynamic linkers.

        Raises:
            LdCacheError: the image's cache has an unknown format.
            UnsafePathError: a path is not a regular file.
        """
        if musl:  # the driver needs glibc: the image must have a layer such as gcompat
            linker.add_musl(self._changes, musl, [f"{self.place}/lib64"])
        if glibc:
            self._add_glibc()

    def _add_glibc(self) -> None:
        """Add the entries of ld.so.cache and the drop-in.

        Raises:
            LdCacheError: the image's cache has an unknown format.
            UnsafePathError: a path is not a regular file.
        """
        names, names_32 = self._share.at("cache", self.place), self._share.of_32_bits(self.place)
        self._is_again = view_cache.add(
            self._changes, self.place, names, names_32, self.compat, self._note
        )

    def _find_links(self) -> None:
        """Add links that programs expect and links that replace mounts; remove old links."""
        links = view_links.placed(self._root, self._share.links())
        singles = {mount[0]: path for mount, path in self._share.singles() if path}
        made, is_any_there = self._changes.link_all(
            (f"{self.place}/{path}", where)
            for where, path in sorted({**links, **singles}.items())
            if not self._is_covered(where)
        )
        self._linked = [where for where in made if where in singles]
        missing = sorted(set(links) - set(made))
        if missing:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            self._note(f"no link {missing[0]}{more}")
        if is_any_there or self._is_again:
            folders = [mount[0].rpartition("/")[0] for mount, _ in self._share.singles()]
            old = view_links.left_behind(self._root, folders, made)
            self._changes.removed += [path for path in old if not self._is_covered(path)]

    def _is_covered(self, path: str) -> bool:
        """Report whether a path is a mount or below one; the result for a folder is cached."""
        folder = path.rpartition("/")[0]
        if folder not in self._above:
            self._above[folder] = bool(self._covered.above(folder or "/"))
        return self._above[folder] or path in self._covered.targets

    def _leave_root(self, why: str) -> None:
        """Use environment variables, because no file can be written."""
        self.env_why = why
        self._linked.clear()
        self.edits = self._edits()

    def _add_profile(self, edits: list[Edits]) -> None:
        """Add the application profile, for containers whose programs use EGL displays."""
        if self._work["profile"] and any(self._share.has(name) for name in WITH_PROFILE):
            add_profile(self._changes, self._covered, gpu_minors(edits))

    # Changes of config.json.

    def _edits(self) -> list[Edits]:
        """Return the edits that replace the common edits, and the other edits."""
        made = no_edits()
        for one in self._common:
            made["nodes"] += one["nodes"]
            made["gids"] += one["gids"]
        made["env"] = self._env()
        made["mounts"] = [*self._single_mounts(), [self.place, self._mount()]]
        if self._share.table["params"]:
            for hook in self._hooks[:1]:
                made["hook"] = {**hook, "work": {**no_work(), "params": True}}
        return [made, *self._others]

    def _single_mounts(self) -> list[list[str]]:
        """Return the separate mounts whose mount point exists or can be created."""
        found = [mount for mount in self._share.of("mounts") if mount[0] not in self._linked]
        if not mount_points.is_read_only(self._root):
            return found
        there = [m for m in found if self._covered.above(m[0]) or self._root.stat(m[0])]
        for mount in found:
            if mount not in there:
                self._note(f"no {mount[0]}: the root is read-only")
        return there

    def _mount(self) -> str:
        source = jsontext.quote(self._share.table["view"])
        return f'{{"destination":"{self.place}","source":{source},"options":{OPTIONS}}}'

    def _env(self) -> list[str]:
        found = self._share.env(self.place)
        if self.env_why:
            self._note(f"found by LD_LIBRARY_PATH, which exec sessions lack: {self.env_why}")
            folders = [self.compat, f"{self.place}/lib64"]
            found.append(extended(self._bundle.env, "LD_LIBRARY_PATH", *folders))
            found.append(extended(self._bundle.env, "PATH", f"{self.place}/bin"))
        return found
