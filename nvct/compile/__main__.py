# SPDX-License-Identifier: Apache-2.0
"""The program that the shim starts: `python -I -m nvct.compile config|registry|own|... ...`.

Writes one JSON object to stdout: the result, or {"error": {...}}.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from nvct.compile import refresh
from nvct.errors import NvctError, UsageError, to_dict, unexpected
from nvct.oci import jsontext


def answer(args: list[str]) -> dict[str, object]:
    """Return the result of a request. Raises NvctError if the request is unknown or fails."""
    match args:
        case ["config", path]:
            return refresh.config(path)
        case ["registry", path, run_dir]:
            return dict(refresh.registry_plan(path, run_dir))
        case [refresh.OWN | refresh.OWN_CSV_ALL | refresh.OWN_NONE as which, path, run_dir]:
            return dict(refresh.own_plan(path, run_dir, which))
        case ["properties", path, run_dir]:
            from nvct.compile import mode_plans

            return dict(mode_plans.properties_plan(path, run_dir))
        case [word, path, run_dir] if word.startswith("mode-"):
            from nvct.compile import mode_plans

            return dict(mode_plans.mode_plan(word.removeprefix(mode_plans.PREFIX), path, run_dir))
    raise UsageError(f"nvct.compile does not know {' '.join(args)!r}")


def main(ask: Callable[[list[str]], dict[str, object]] = answer) -> int:
    """Write the answer to stdout and return the exit status."""
    try:
        text = jsontext.dumps(ask(sys.argv[1:]))
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
