# SPDX-License-Identifier: Apache-2.0
"""Entry point of nvidia-cdi-hook: `sys.argv` is -c, the name of the program, its arguments.

Hot.
"""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(_cold: str) -> NoReturn:
    """Run the hook and exit without finalizing the interpreter."""
    from nvct import paths
    from nvct.container.cdi_hook.main import main as run

    status = run(sys.argv[2:], run_dir=paths.RUN_DIR)
    sys.stdout.flush()
    sys.stderr.flush()
    posix._exit(status)
