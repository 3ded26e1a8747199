# SPDX-License-Identifier: Apache-2.0
"""The functions and structs of declarations.h, and one way to call a function.

cffi checks the number and the types of the arguments. Contract: the first kernel call imports this
module, which takes 0.9 ms of CPU; `ctypes` takes 2.3, and cffi 39 if it parses the declarations.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from nvct.kernel import declared
from nvct.linux.syscall import number

ffi: Any = declared.ffi
lib: Any = ffi.dlopen(None)  # what this process has loaded, the C library among it


def system_call(name: str, nr: int = 0) -> Callable[..., int]:
    """Return a system call for which declarations.h has the type NAME_call.

    `nr`: its number, if `nvct.linux.syscall` does not have it.
    """
    function, nr = ffi.cast(f"{name}_call *", lib.syscall), nr or number(name)
    return lambda *arguments: function(nr, *arguments)  # functools would take 2 ms to import


def call(
    function: Callable[..., int],
    *arguments: object,
    path: str | None = None,
    other: str | None = None,
) -> int:
    """Return the result of a function of the C library or of `system_call`.

    OSError, with the paths, if the result was negative.
    """
    result = function(*arguments)
    if result < 0:
        raise OSError(ffi.errno, os.strerror(ffi.errno), path, None, other)
    return result


def c_string(text: str | None) -> Any:  # noqa: ANN401 - bytes or C's NULL
    """Return a string as C takes it, NULL for None; ValueError for a NUL, where C would end it."""
    if text is None:
        return ffi.NULL
    if "\0" in text:
        raise ValueError("embedded null byte")
    return os.fsencode(text)
