# SPDX-License-Identifier: Apache-2.0
"""Calls in a process of their own."""

from __future__ import annotations

import os
import signal
import time

import pytest

from nvct.errors import NvmlError
from nvct.host import apart


def test_the_result_comes_back_however_long_it_is() -> None:
    assert apart.run(lambda: ("x" * 1_000_000, os.getppid()), 20) == ("x" * 1_000_000, os.getpid())


def test_an_error_comes_back_with_its_hint() -> None:
    def refuse() -> None:
        raise NvmlError("gpu is lost", hint="see dmesg")

    with pytest.raises(NvmlError, match="gpu is lost") as caught:
        apart.run(refuse, 20)
    assert caught.value.hint == "see dmesg"


def test_a_crash_is_an_error_that_names_the_signal() -> None:
    with pytest.raises(apart.DiedError, match="SIGKILL"):
        apart.run(lambda: os.kill(os.getpid(), signal.SIGKILL), 20)


def test_a_process_that_ends_itself_is_an_error() -> None:
    with pytest.raises(apart.DiedError, match="exit status 3"):
        apart.run(lambda: os._exit(3), 20)


def test_a_call_that_hangs_is_given_up_and_its_process_is_gone() -> None:
    before = time.monotonic()

    with pytest.raises(TimeoutError):
        apart.run(lambda: time.sleep(60), 0.1)

    assert time.monotonic() - before < 30
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
