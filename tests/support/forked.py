# SPDX-License-Identifier: Apache-2.0
"""Run a part of a test in a child process, so that mounts and kills affect only the child."""

import functools
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import ParamSpec

import pytest

from nvct.linux.constants import CLONE_NEWNS, MS_PRIVATE, MS_REC
from nvct.linux.kernel import KERNEL

Given = ParamSpec("Given")


def run_forked(function: Callable[[], object]) -> int:
    """Run a function in a child; return its wait status, or raise the child's exception."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses no locks of threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # an alarm ends it, whatever it does
            function()
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        failure = pipe.read()
    status = os.waitpid(pid, 0)[1]
    assert not failure, failure
    return status


def in_mount_namespace(function: Callable[[], object]) -> None:
    """Run a function in a child with its own mount namespace; skip if that is not allowed."""
    if not may_unshare():
        pytest.skip("needs CAP_SYS_ADMIN")

    def child() -> None:
        _private_mounts()
        function()

    assert run_forked(child) == 0


def in_a_mount_namespace(test: Callable[Given, None]) -> Callable[Given, None]:
    """Make a test run in a child with its own mount namespace; its fixtures stay outside."""

    @functools.wraps(test)
    def whole(*args: Given.args, **kwargs: Given.kwargs) -> None:
        in_mount_namespace(functools.partial(test, *args, **kwargs))

    return whole


@functools.cache
def may_unshare() -> bool:
    """Report whether this process may create a mount namespace."""

    def child() -> None:
        try:
            _private_mounts()
        except OSError:
            os._exit(2)

    return run_forked(child) == 0


def _private_mounts() -> None:
    KERNEL.unshare(CLONE_NEWNS)
    KERNEL.mount(None, "/", None, MS_REC | MS_PRIVATE)
