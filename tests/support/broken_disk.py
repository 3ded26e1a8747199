# SPDX-License-Identifier: Apache-2.0
"""A disk that fails: system calls on some names end with EIO."""

import errno
import os
from typing import Any

import pytest


def break_call(monkeypatch: pytest.MonkeyPatch, call: str, name: str) -> None:
    """Have a function of `os` fail for paths that end with a name."""
    real = getattr(os, call)

    def failing(path: Any, *given: Any, **more: Any) -> Any:
        if os.fspath(path).endswith(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *given, **more)

    monkeypatch.setattr(os, call, failing)
