# SPDX-License-Identifier: Apache-2.0
"""Command lines of programs that call one function of nvct_sim.

They run under -I -S, so the code itself adds this package's folder to the module path.
"""

from __future__ import annotations

import os
import sys

import nvct

CODE = "import sys; sys.path[:0] = {folders!r}; from nvct_sim import {module}; {call}"


def python_command(call: str, *arguments: str, also: str = "") -> list[str]:
    """Return the command that calls a function, such as `oci_runtime.main()`.

    Args:
        call: the function and its arguments.
        arguments: of the command.
        also: another folder of the module path.
    """
    (package,) = nvct.__path__
    module = call.partition(".")[0]
    folders = [os.path.dirname(package), *([also] if also else [])]
    code = CODE.format(folders=folders, module=module, call=call)
    return [sys.executable, "-I", "-S", "-B", "-c", code, *arguments]
