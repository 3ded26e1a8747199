# SPDX-License-Identifier: Apache-2.0
"""Hook create-symlinks: links inside the container, `--link TARGET::LINK` each.

The target stands in the link as given: it may be relative, absolute or dangling, and means what
it means inside the container. The link's directory is resolved inside the root and made if need
be; a file or another link at its place is replaced in one step.
"""

from __future__ import annotations

from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.hook.context import Context

SEPARATOR = "::"


def run(context: Context) -> None:
    """Make the links.

    Raises:
        UsageError: a link isn't written TARGET::LINK.
        UnsafePathError: a directory stands where the link is to be.
    """
    links = [split(text) for text in context.options.values("link")]
    if links:
        context.root().symlinks(links, kernel=context.kernel)


def split(text: str) -> tuple[str, str]:
    """Return (target, link).

    Raises:
        UsageError: it isn't written TARGET::LINK.
    """
    parts = text.split(SEPARATOR)
    if len(parts) != 2 or not parts[0] or not parts[1].strip("/"):
        raise UsageError(f"link {text!r} is not written TARGET::LINK")
    return parts[0], parts[1]
