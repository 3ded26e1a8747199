# SPDX-License-Identifier: Apache-2.0
"""Hook create-symlinks: makes links in the container, `--link TARGET::LINK` each.

The target is used as given: it may be relative, absolute or dangling, and is resolved in the
container. The directory of the link is resolved in the root, and made if it is missing. An
existing file or link is replaced atomically.
"""

from __future__ import annotations

from nvct.container.plan import hook_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context


def run(context: Context) -> None:
    """Make the links.

    Raises:
        UsageError: a link is not written TARGET::LINK.
        UnsafePathError: the path of a link is a directory.
    """
    make(context, hook_command.work(context.options)["links"])


def make(context: Context, links: list[list[str]]) -> None:
    """Make links, [target, path] each.

    Raises:
        UnsafePathError: the path of a link is a directory.
    """
    if links:
        pairs = [(target, path) for target, path in links]
        context.root().symlinks(pairs, kernel=context.kernel)
