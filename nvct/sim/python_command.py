# SPDX-License-Identifier: Apache-2.0
"""Command lines of programs that call one function of nvct.sim.

They run under -I -S, so the code itself adds this package's folder to the module path.
"""

from __future__ import annotations

import os
import sys

import nvct

CODE = "import sys; sys.path.insert(0, {packages!r}); from nvct.sim import {module}; {call}"


def python_command(call: str, *arguments: str) -> list[str]:
    """Return the command that calls a function, such as `oci_runtime.main()`."""
    (package,) = nvct.__path__
    module = call.partition(".")[0]
    code = CODE.format(packages=os.path.dirname(package), module=module, call=call)
    return [sys.executable, "-I", "-S", "-B", "-c", code, *arguments]
