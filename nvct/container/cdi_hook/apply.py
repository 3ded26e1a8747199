# SPDX-License-Identifier: Apache-2.0
"""Hook apply, which does all work for a container in one process, and hooks of a few lines.

The order is: the mount over the driver's params, which needs the container's mount namespace;
links, because libraries are found by SONAME links; CUDA compatibility and the linker's cache. In
layout farm the last two are for the view that the spec mounts.
"""

from __future__ import annotations

from nvct.container.plan import hook_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context
    from nvct.container.plan.model import View, Work


def run(context: Context) -> None:
    """Do the work that the flags describe; after an NvctError, earlier changes stay."""
    do(context, hook_command.work(context.options), hook_command.view(context.options))


def do(context: Context, work: Work, view: View | None = None) -> None:
    """Do the work in a container's root; after an NvctError, earlier changes stay."""
    if work["params"]:
        from nvct.container.cdi_hook import disable_device_node_modification

        disable_device_node_modification.run(context)
    if view is not None:
        from nvct.container.cdi_hook import show_view

        show_view.cover_files(context, view)  # also a mount
    _make_links(context, work["links"])
    if view is not None:
        from nvct.container.cdi_hook import show_view

        show_view.run(context, view, _compat_folder(context, work))
    elif work["folders"] or work["compat"]:
        from nvct.container.cdi_hook import update_ldcache

        folder = _compat_folder(context, work)
        update_ldcache.update(context, work["folders"], [folder] if folder else [])
    if work["profile"]:
        from nvct.container.cdi_hook import update_application_profile

        update_application_profile.run(context, leave_volumes=view is not None)


def create_symlinks(context: Context) -> None:
    """Make links in the container, `--link TARGET::LINK` each; UsageError, UnsafePathError."""
    _make_links(context, hook_command.work(context.options)["links"])


def _make_links(context: Context, links: list[list[str]]) -> None:
    """Make links, (target, path) each, and the folders above them; files and links are replaced.

    The target is used as given: it may be relative, absolute or dangling.
    """
    if links:
        pairs = [(target, path) for target, path in links]
        context.root().symlinks(pairs, kernel=context.kernel)


def noop(_context: Context) -> None:
    """Do nothing: it shows that the runtime starts hooks."""


def keep_leases(context: Context) -> None:
    """Give the leases of the shim (free:N) to the container's first process.

    Raises BundleError or HostError if the process or a lease is gone.
    """
    from nvct.container import leases
    from nvct.container.cdi_hook.context import process_of

    pid, context.bundle = process_of(context.state())
    folder, holder, count = map(context.options.text, ("folder", "holder", "count"))
    leases.hand_over(folder, int(count), holder, pid)


def _compat_folder(context: Context, work: Work) -> str:
    """Return the folder of the image's CUDA compatibility libraries, "" if they are not used."""
    if not work["compat"]:
        return ""
    from nvct.container.rootfs import compat

    return compat.choose(context.root(), work["compat"], context.warn) or ""
