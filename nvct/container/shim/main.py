# SPDX-License-Identifier: Apache-2.0
"""Program nvidia-container-runtime (and .cdi, .legacy): the part that needs Python.

Hot: started with -I -S by the launcher, for every create and run that may ask for a GPU, and
for whatever the launcher was not sure about. It decides, edits the bundle, and becomes the
low-level runtime. A container that asks for no GPU never fails here.
"""

from __future__ import annotations

import posix
import sys

from nvct.errors import NvctError
from nvct.oci import argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MODES = {"nvidia-container-runtime.cdi": "cdi", "nvidia-container-runtime.legacy": "legacy"}


def main(cold: str) -> NoReturn:
    """Run the shim on sys.argv: the program's name, then the low-level runtime's arguments.

    Args:
        cold: the interpreter that has nvct's cold side and its dependencies.
    """
    program = sys.argv[1]
    said = argv.parse(sys.argv[2:])
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape")
           for k, v in posix.environ.items()}  # fmt: skip
    logs = [said.log]
    try:
        _run(program, said, env, cold, logs)
    except NvctError as error:
        from nvct.container.shim.log import report

        report(program, error, said, logs)
        posix._exit(error.exit_status)  # no finalisation: 1 ms
    except Exception as error:
        from nvct.container.shim.log import report_crash

        report_crash(program, error, said, logs, debug="NVCT_DEBUG" in env)
        posix._exit(1)


def _run(
    program: str, said: argv.Invocation, env: dict[str, str], cold: str, logs: list[str]
) -> NoReturn:
    from nvct.container.plan.store import Store, run_dir
    from nvct.container.shim import lowlevel, settings

    store = Store(run_dir(env), create=True)
    try:
        config = settings.load(store, env, cold)
        trouble: NvctError | None = None
    except NvctError as error:  # of the file, or of the door: both only concern who asks
        config, trouble = settings.fallback(), error
    if said.version:
        from nvct import version

        posix.write(1, f"{version.text('NVIDIA Container Runtime')}\n".encode())
    if said.creates:
        from nvct.container.shim import create

        logs.append(config.debug)
        if program in MODES:
            config = config.replaced(mode=MODES[program])
        host = create.Host(store, env, cold, config.proc_root)
        decided = create.create(said, config, host, trouble)
        if config.debug:
            from nvct.container.shim.log import note

            note(program, config, said, decided)
    path = lowlevel.find(config.runtimes, env.get("PATH", ""))
    store.close()
    lowlevel.become(path, sys.argv[2:])
