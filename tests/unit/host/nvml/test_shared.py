# SPDX-License-Identifier: Apache-2.0
"""The sessions of one process: one for each library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvct.errors import NvmlError
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.nvml.session import close_shared, shared_session
from tests.support.host_tree import FakeNvml


def test_all_callers_share_one_session_per_library(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    second.touch()

    session = shared_session(str(first))

    assert shared_session(str(first)) is session
    assert shared_session(str(second)) is not session
    assert DiscoveryOptions().nvml_of(str(first)) is session


def test_discovery_uses_the_nvml_in_its_options(tmp_path: Path) -> None:
    fake = FakeNvml()

    assert DiscoveryOptions(nvml=fake).nvml_of("/lib/libnvidia-ml.so.1") is fake
    assert DiscoveryOptions(nvml=None).nvml_of("/lib/libnvidia-ml.so.1") is None
    assert DiscoveryOptions().nvml_of(None) is None
    assert DiscoveryOptions().nvml_of("") is None


def test_a_file_that_was_replaced_gets_another_session(tmp_path: Path) -> None:
    library, other = tmp_path / "libnvidia-ml.so.1", tmp_path / "other"
    library.touch()
    session = shared_session(str(library))
    other.touch()
    other.replace(library)

    assert shared_session(str(library)) is not session
    assert shared_session(str(library)) is shared_session(str(library))


def test_closing_ends_every_worker(tmp_path: Path) -> None:
    sessions = [shared_session("libc.so.6"), shared_session("libm.so.6")]
    for session in sessions:
        with pytest.raises(NvmlError):
            session.check()
    workers = [session._worker.pid for session in sessions if session._worker]
    assert len(workers) == 2

    close_shared()

    for pid in workers:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    assert shared_session("libc.so.6") not in sessions


PROGRAM = """
from nvct.errors import NvmlError
from nvct.host.nvml.session import shared_session
try:
    shared_session("libc.so.6").check()
except NvmlError:
    print(shared_session("libc.so.6")._worker.pid)
"""


def test_the_end_of_the_process_ends_its_workers() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    assert not Path(f"/proc/{int(result.stdout)}").exists()
    assert result.stderr == ""
