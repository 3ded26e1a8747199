# SPDX-License-Identifier: Apache-2.0
"""The cold side of the shim's door: `python -I -m nvct.refresh config|registry|own ...`.

Answers with one JSON object on stdout: what was asked for, or {"error": {...}}.
"""

from __future__ import annotations

import sys

from nvct.errors import NvctError, UsageError
from nvct.oci import jsontext
from nvct.refresh import compiled


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
        case ["own", path, run_dir]:
            return dict(compiled.own_plan(path, run_dir))
    raise UsageError(f"nvct.refresh does not know {' '.join(args)!r}")


def main() -> int:
    """Answer on stdout."""
    try:
        text = jsontext.dumps(answer(sys.argv[1:]))
        status = 0
    except NvctError as error:
        failed = {"class": type(error).__name__, "message": error.message, "hint": error.hint}
        text = jsontext.dumps({"error": failed})
        status = error.exit_status
    sys.stdout.write(text + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
