# SPDX-License-Identifier: Apache-2.0
"""Hook apply: all of a container's work in one process, in the order that the parts need.

The mount over the driver's params first, as it has to be made in the container's mount namespace;
then links, as SONAME links are what libraries are found by; then the choice of CUDA compatibility
and the dynamic linker's cache.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.hook.context import Context


def run(context: Context) -> None:
    """Do what the flags ask for.

    Raises:
        NvctError: a part could not be done; what was done before stays.
    """
    options = context.options
    if options.is_set("mask-params"):
        from nvct.hook import disable_device_node_modification

        disable_device_node_modification.run(context)
    folders = options.values("folder")
    if options.values("link"):
        from nvct.hook import create_symlinks

        create_symlinks.run(context)
    wants_compat = options.text("host-driver-version") or options.text("host-cuda-version")
    if folders or wants_compat:
        from nvct.hook import update_ldcache

        compat = None
        if wants_compat:
            from nvct.hook import enable_cuda_compat

            compat = enable_cuda_compat.choose(context)
        update_ldcache.update(context, folders, [compat] if compat else [])
    if options.is_set("application-profile"):
        from nvct.hook import update_application_profile

        update_application_profile.run(context)
