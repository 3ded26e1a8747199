# SPDX-License-Identifier: Apache-2.0
"""What the cold kernel has beyond the hot one; tests/unit/linux/test_kernel.py has the rest."""

import os
import sys
import time
from pathlib import Path

from nvct.kernel.calls import KERNEL
from tests.support.forked import run_forked
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[3]
PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
from nvct.kernel.calls import KERNEL
early = set(sys.modules)
try:
    KERNEL.umount2("/no/such/place")
except FileNotFoundError:
    pass
print(*sorted(early & {"_cffi_backend", "nvct.kernel.library"}))
print(*sorted((set(sys.modules) - early) & {"_cffi_backend", "cffi", "ctypes", "_ctypes"}))
"""


def test_only_a_call_loads_cffi_and_no_part_of_it_that_parses() -> None:
    command = [sys.executable, "-I", "-c", PROBE, str(REPOSITORY)]
    done = captured(command, check=True)
    assert done.stdout == "\n_cffi_backend\n"


def test_a_subreaper_gets_the_orphans_of_its_descendants() -> None:
    def child() -> None:
        reaper = os.getpid()
        KERNEL.set_child_subreaper()
        if not os.fork():
            parent = os.getpid()
            if not os.fork():
                while os.getppid() == parent:
                    time.sleep(0.005)
                os._exit(os.getppid() == reaper)
            os._exit(7)
        ends = {os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) for _ in range(2)}
        assert ends == {7, 1}

    assert run_forked(child) == 0
