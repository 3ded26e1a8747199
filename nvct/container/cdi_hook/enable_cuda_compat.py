# SPDX-License-Identifier: Apache-2.0
"""Hook enable-cuda-compat: prefers the image's newer libcuda if the driver supports it.

The rules are in `nvct.container.rootfs.compat`. The folder is only added to the search path of the
image's dynamic linker; no code of the image runs here.
"""

from __future__ import annotations

from nvct.container.cdi_hook.context import Context
from nvct.container.plan import hook_command
from nvct.container.rootfs import compat, linker
from nvct.container.rootfs.changes import Changes


def run(context: Context) -> None:
    """Put the folder first in the drop-in, which the next update-ldcache reads.

    Raises NvctError.
    """
    versions = hook_command.work(context.options)["compat"]
    if not versions:
        return
    root = context.root()
    old = linker.read_conf(root)
    folder = compat.choose(root, versions, context.warn)
    folders = [folder] if folder else []
    if folders == old.compat:
        return
    changes = Changes(root)
    removed = [f for f in old.compat if f not in folders]
    if removed:
        from nvct.container.cdi_hook.update_ldcache import forget

        forget(context, changes, removed)
    linker.add_conf(changes, linker.LinkerConf(folders, old.folders, old.view))
    changes.write(context.kernel)
