# SPDX-License-Identifier: Apache-2.0
"""Hook chmod: the mode of files and directories inside the container.

Deprecated by the incumbent, kept for specs that name it. A mode is taken as a whole, its sticky
and set-id bits as well.
"""

from __future__ import annotations

from nvct.errors import NvctError, UsageError
from nvct.linux.constants import S_IFMT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context


def run(context: Context) -> None:
    """Set the mode of what exists; a lack of permission is passed over, as the incumbent does.

    Raises:
        UsageError: there is no mode, or it's not octal.
        NvctError: the first thing that went wrong, after all paths were tried.
    """
    mode = parse_mode(context.options.text("mode"))
    paths = context.options.values("path")
    if not paths:
        return
    root = context.root()
    failed: NvctError | OSError | None = None
    for path in paths:
        try:
            found = root.stat(path)
            if found is not None and found.st_mode & ~S_IFMT != mode:
                root.chmod(path, mode, kernel=context.kernel)
        except PermissionError:
            continue
        except (NvctError, OSError) as error:
            failed = failed or error
    if failed is not None:
        raise failed


def parse_mode(text: str) -> int:
    """Return an octal mode.

    Raises:
        UsageError: it is none.
    """
    digits = text[2:] if text.startswith("0o") else text
    if not digits or len(digits) > 5 or digits.strip("01234567") or int(digits, 8) > 0o7777:
        raise UsageError(f"--mode is {text!r}, want an octal number such as 755")
    return int(digits, 8)
