# SPDX-License-Identifier: Apache-2.0
"""Layout "classic" without a hook: does the hook's work in the root before the container starts.

Hot. The mounts do not change. `nvct.container.rootfs` writes links, ld.so.cache, its drop-in and
the application profile into the root, as the hook does, so that no second Python starts. The hook
stays if it would see another root than the one here, and if it would refuse the root. The mask
over the driver's params needs a mount below /proc, which no runtime makes: only the hook does it.
"""

from __future__ import annotations

from nvct.container.deliver.bundle_root import Layout, UnfitError, gpu_minors, open_root, reason
from nvct.container.plan import model
from nvct.container.rootfs import linker, mount_points, profile
from nvct.errors import NvctError
from nvct.linux.kernel import KERNEL
from nvct.oci.bundle import mount_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.plan.model import Edits, Work
    from nvct.container.rootfs.libraries import Libraries
    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root
    from nvct.oci.bundle import Bundle


def decide(
    bundle: Bundle,
    folder: str,
    edits: list[Edits],
    note: Callable[[str], None],
    *,
    kernel: Kernel = KERNEL,
) -> Layout | None:
    """Return a layout that does the hook's work, None if the hook must do it."""
    try:
        _check(bundle, edits)
        layout = _ClassicLayout(bundle, folder, open_root(bundle, folder), edits, note)
        layout.decide(model.merge([e["hook"]["work"] for e in edits if "hook" in e]), kernel)
    except (UnfitError, NvctError, OSError) as error:
        note(f"with a hook: {reason(error)}")
        return None
    return layout


def _check(bundle: Bundle, edits: list[Edits]) -> None:
    """Refuse containers that need the hook, whatever their root contains."""
    if any(edit["hooks"] for edit in edits):
        raise UnfitError("there is another hook")
    if bundle.has_user_namespace() and not bundle.objects(("linux", "uidMappings")):
        raise UnfitError("it joins a user namespace that config.json does not map")


class _ClassicLayout(Layout):
    __slots__ = ("_driver_mounts", "_hooked_edits")

    def __init__(
        self,
        bundle: Bundle,
        folder: str,
        root: Root,
        edits: list[Edits],
        note: Callable[[str], None],
    ) -> None:
        driver = {mount[0] for edit in edits if "cache" in edit for mount in edit["mounts"]}
        hiding = [mount[0] for edit in edits if "cache" not in edit for mount in edit["mounts"]]
        paths = [mount.get("destination") for mount in bundle.mounts]
        hiding += [p for p in paths if isinstance(p, str) and mount_target(p) not in driver]
        super().__init__(bundle, folder, root, hiding, note)
        self._driver_mounts = driver
        self._hooked_edits = edits
        self.edits = [edit for edit in edits if "hook" not in edit]
        self.summary = "without a hook"

    def _leave_root(self, why: str) -> None:
        self.edits, self.summary = self._hooked_edits, f"with a hook: {why}"

    def decide(self, work: Work, kernel: Kernel) -> None:
        """Decide what to write; change nothing. UnfitError if the hook would see another root."""
        root = self._root
        if mount_points.is_read_only(root):
            raise UnfitError("the root is read-only")
        why = self._why_unwritable(kernel)
        if why:
            raise UnfitError(why)
        self._refuse_mounts(work)
        self._changes.links += [(target, path) for target, path in work["links"]]
        folders = work["folders"]
        if folders or work["compat"]:
            compat = self._compat_folder(work["compat"])
            musl = linker.musl_path(root)
            if musl:
                linker.add_musl(self._changes, musl, folders)
            if linker.has_glibc(root):
                self._add_cache(folders, compat)
        if work["profile"]:
            self._add_profile(self._gpu_minors())

    def _refuse_mounts(self, work: Work) -> None:
        """Refuse work in paths that a mount of config.json will cover."""
        files = [linker.CACHE, linker.CONF, linker.MAIN_CONF, profile.PATH]
        files += linker.LOADERS.values()
        files += filter(None, [linker.musl_path(self._root)])
        links = [path for _, path in work["links"]]
        folders = {*work["folders"], *(path.rpartition("/")[0] or "/" for path in links)}
        for path in (*files, *folders):
            over = self._covered.above(path) or self._covered.above(self._root.real(path))
            if over:
                raise UnfitError(f"{over} is a mount")
        for path in links:
            if path in self._driver_mounts:
                raise UnfitError(f"{path} is a mount and a link")
            folder, _, name = path.rpartition("/")
            beside = self._root.real(folder or "/").rstrip("/")
            over = self._covered.about(path) or self._covered.about(f"{beside}/{name}")
            if over:  # a runtime would follow the link when it mounts
                raise UnfitError(f"{over} is a mount")
        for path in work["folders"]:
            over = self._covered.about(path) or self._covered.about(self._root.real(path))
            if over:
                raise UnfitError(f"{over} is a mount")

    def _add_cache(self, folders: list[str], compat: str) -> None:
        """Add ld.so.cache and its drop-in, as the hook update-ldcache writes them."""
        from nvct.container.rootfs.linker_state import LinkerState

        root = self._root
        linker_state = LinkerState(root)
        if linker_state.problem:
            raise UnfitError(linker_state.problem)
        if linker_state.earlier.view:
            self._remove_view_links()
        default_folders = linker_state.default_folders()
        libraries: Libraries = {}
        if compat:
            from nvct.container.rootfs.libraries import MountTargets, scan

            libraries = scan(root, compat, MountTargets([]), self._note, compat)
        names = {f: default_folders.get(root.real(f), f.rstrip("/")) for f in folders}
        self._add_libraries(libraries, names)
        added = [f for f in dict.fromkeys(names.values()) if f not in default_folders.values()]
        linker_state.add_to(self._changes, libraries, [compat] if compat else [], added)

    def _remove_view_links(self) -> None:
        """Remove links of an earlier start in layout farm: runtimes mount on their targets."""
        from nvct.container.rootfs import view_links

        folders = [path.rpartition("/")[0] for path in self._driver_mounts]
        links = view_links.left_behind(self._root, folders)
        self._changes.removed += [path for path in links if not self._covered.above(path)]

    def _add_libraries(self, libraries: Libraries, names: dict[str, str]) -> None:
        added: set[tuple[str, str, str]] = set()
        for entry in [entry for edit in self._hooked_edits for entry in edit.get("cache", ())]:
            machine, soname, path = entry
            folder, _, file = path.rpartition("/")
            if folder in names and (machine, soname, path) not in added:
                added.add((machine, soname, path))
                libraries.setdefault(machine, []).append((soname, f"{names[folder]}/{file}"))

    def _gpu_minors(self) -> list[int]:
        has_own_dev = False
        for mount in self._bundle.mounts:
            destination = mount_target(str(mount.get("destination")))
            if destination == "/dev":
                has_own_dev = mount.get("type") == "tmpfs"
            if profile.is_gpu(destination.removeprefix("/dev/")):
                raise UnfitError(f"{destination} is a mount")
        if not has_own_dev:
            raise UnfitError("it has no /dev of its own")
        minors = gpu_minors(self._hooked_edits)
        for element in self._bundle.document.elements(("linux", "devices")):
            device = element.value if isinstance(element.value, dict) else {}
            path, minor = device.get("path"), device.get("minor")
            if isinstance(path, str) and isinstance(minor, int):
                minors += [minor] if profile.is_gpu(path.removeprefix("/dev/")) else []
        return minors
