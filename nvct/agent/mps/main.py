# SPDX-License-Identifier: Apache-2.0
"""Program `mps-control-daemon`: keeps the MPS control daemons of a node, as NVIDIA's program.

The agent's device plugin does the same by itself. This program is for DaemonSets that have it
beside the plugin's; `mps-control-daemon mount-shm` is that of their init container.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.device_plugin.settings import Settings
    from nvct.agent.discovery import Discovery
    from nvct.agent.logs import Log
    from nvct.agent.mps.task import MpsDaemons
    from nvct.agent.nvml.client import NvmlClient

PROGRAM = "mps-control-daemon"
INCUMBENT = "0.20.0"
"""The version of NVIDIA's program whose options this one takes."""
MOUNT_SHM = "mount-shm"


def main() -> NoReturn:
    """Run the program."""
    from nvct.agent import program
    from nvct.agent.mps import options

    if sys.argv[1:] == [MOUNT_SHM]:
        _mount_shm()
    program.main(
        program.Program(
            name=PROGRAM,
            title="NVIDIA MPS Control Daemon",
            version=INCUMBENT,
            help_text=options.help_text,
            check=options.resolve,
            make=make,
        )
    )


def make(
    words: Sequence[str], env: Mapping[str, str], client: NvmlClient, journal: Log
) -> MpsDaemons:
    """Return the task, with the settings of a command line and environment.

    Raises:
        UsageError, DocumentError: a setting is wrong.
    """
    from nvct.agent.discovery import of_this_machine
    from nvct.agent.driver_root import with_driver_roots
    from nvct.agent.mps import options, place
    from nvct.agent.mps.task import MpsDaemons

    def load() -> Settings:
        return journal.warned(options.resolve(words, env))

    def discovery() -> Discovery:
        root = with_driver_roots(env).get("DRIVER_ROOT_CTR_PATH", "/driver-root")
        return of_this_machine(client, root, "auto")

    return MpsDaemons(load, discovery(), place.of_environment(env).folder, journal)


def _mount_shm() -> NoReturn:
    from nvct.agent.mps import shm
    from nvct.errors import NvctError, line

    try:
        shm.mount()
    except NvctError as error:
        sys.stderr.write(f"{line(f'{PROGRAM} {MOUNT_SHM}', error)}\n")
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
