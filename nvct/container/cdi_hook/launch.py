# SPDX-License-Identifier: Apache-2.0
"""How the launcher starts nvidia-cdi-hook: `sys.argv` is -c, the program's name, its arguments.

Hot.
"""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(_cold: str) -> NoReturn:
    """Run the hook that the arguments name and leave without finalising the interpreter."""
    from nvct.container.cdi_hook.main import main as run

    status = run(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    posix._exit(status)
