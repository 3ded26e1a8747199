# SPDX-License-Identifier: Apache-2.0
"""Hook enable-cuda-compat: prefer the image's newer libcuda where the driver allows it.

The rules are in `nvct.container.rootfs.compat`. The image's folder is only named to its dynamic
linker, nothing of it runs here.
"""

from __future__ import annotations

from nvct.container.cdi_hook import options
from nvct.container.rootfs import compat, linker_conf
from nvct.container.rootfs.changes import Changes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context


def run(context: Context) -> None:
    """Put the folder first in the drop-in, where the next update-ldcache finds it.

    Raises:
        NvctError: the container's files don't allow it.
    """
    versions = options.work(context.options)["compat"]
    if not versions:
        return
    root = context.root()
    old = linker_conf.read(root)
    chosen = compat.choose(root, versions, context.warn)
    folders = [chosen] if chosen else []
    if folders == old.compat:
        return
    changes = Changes(root)
    gone = [f for f in old.compat if f not in folders]
    if gone:
        from nvct.container.cdi_hook.update_ldcache import forget

        forget(context, changes, gone)
    changes.linker_conf(linker_conf.LinkerConf(folders, old.folders, old.view))
    changes.write(context.kernel)
