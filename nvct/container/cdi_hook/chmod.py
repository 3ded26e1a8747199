# SPDX-License-Identifier: Apache-2.0
"""Hook chmod: sets the mode of files and directories in the container.

The incumbent has deprecated it; existing specs use it. The mode includes the sticky and set-id
bits.
"""

from __future__ import annotations

from nvct.container.cdi_hook.context import Context
from nvct.errors import NvctError, UsageError
from nvct.linux.constants import S_IFMT


def run(context: Context) -> None:
    """Set the mode of existing paths; ignore missing permission, as the incumbent does.

    Raises UsageError for a bad mode, and the first other error after all paths were tried.
    """
    mode = parse_mode(context.options.text("mode"))
    paths = context.options.values("path")
    if not paths:
        return
    root = context.root()
    first_error: NvctError | OSError | None = None
    for path in paths:
        try:
            status = root.stat(path)
            if status is not None and status.st_mode & ~S_IFMT != mode:
                root.chmod(path, mode, kernel=context.kernel)
        except PermissionError:
            continue
        except (NvctError, OSError) as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def parse_mode(text: str) -> int:
    """Return an octal mode. Raises UsageError if the text is not an octal mode."""
    digits = text[2:] if text.startswith("0o") else text
    if not digits or len(digits) > 5 or digits.strip("01234567") or int(digits, 8) > 0o7777:
        raise UsageError(f"--mode is {text!r}, not an octal number such as 755")
    return int(digits, 8)
