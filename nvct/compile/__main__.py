# SPDX-License-Identifier: Apache-2.0
"""The cold side of the shim's door: `python -I -m nvct.compile config|registry|own|... ...`.

Answers with one JSON object on stdout: what was asked for, or {"error": {...}}.
"""

from __future__ import annotations

import os
import sys
import traceback

from nvct.compile import refresh as compiled
from nvct.errors import NvctError, UsageError, to_dict, unexpected
from nvct.oci import jsontext


def answer(args: list[str]) -> dict[str, object]:
    """Do what the arguments say and return the answer.

    Raises:
        NvctError: it cannot be done.
    """
    match args:
        case ["config", path]:
            return compiled.config(path)
        case ["registry", path, run_dir]:
            return dict(compiled.registry_plan(path, run_dir))
        case [compiled.OWN | compiled.OWN_CSV_ALL | compiled.OWN_NONE as which, path, run_dir]:
            return dict(compiled.own_plan(path, run_dir, which))
        case ["properties", path, run_dir]:
            from nvct.compile import extras

            return dict(extras.properties_plan(path, run_dir))
        case [word, path, run_dir] if word.startswith("mode-"):
            from nvct.compile import extras

            return dict(extras.mode_plan(word.removeprefix(extras.PREFIX), path, run_dir))
    raise UsageError(f"nvct.compile does not know {' '.join(args)!r}")


def main() -> int:
    """Answer on stdout."""
    try:
        text = jsontext.dumps(answer(sys.argv[1:]))
        status = 0
    except NvctError as error:
        text = jsontext.dumps({"error": to_dict(error)})
        status = error.exit_status
    except Exception as error:
        if "NVCT_DEBUG" in os.environ:
            traceback.print_exc()
        text = jsontext.dumps({"error": to_dict(unexpected(error))})
        status = 1
    sys.stdout.write(text + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
