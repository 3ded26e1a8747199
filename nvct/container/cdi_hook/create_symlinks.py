# SPDX-License-Identifier: Apache-2.0
"""Hook create-symlinks: links inside the container, `--link TARGET::LINK` each.

The target stands in the link as given: it may be relative, absolute or dangling, and means what
it means inside the container. The link's directory is resolved inside the root and made if need
be; a file or another link at its place is replaced in one step.
"""

from __future__ import annotations

from nvct.container.cdi_hook import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context


def run(context: Context) -> None:
    """Make the links.

    Raises:
        UsageError: a link isn't written TARGET::LINK.
        UnsafePathError: a directory stands where the link is to be.
    """
    make(context, options.work(context.options)["links"])


def make(context: Context, links: list[list[str]]) -> None:
    """Make links, [target, path] each.

    Raises:
        UnsafePathError: a directory stands where the link is to be.
    """
    if links:
        pairs = [(target, path) for target, path in links]
        context.root().symlinks(pairs, kernel=context.kernel)
