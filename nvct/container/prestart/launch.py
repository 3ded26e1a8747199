# SPDX-License-Identifier: Apache-2.0
"""Entry point of nvidia-container-runtime-hook for the launcher.

Hot. `sys.argv` is -c, the program's name, its arguments.
"""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(cold: str) -> NoReturn:
    """Run the hook and leave without finalising the interpreter."""
    from nvct.config.model import without_choice
    from nvct.container.prestart.main import main as run

    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape")
           for k, v in posix.environ.items()}  # fmt: skip
    status = run(sys.argv[2:], without_choice(env), cold, program=sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    posix._exit(status)
