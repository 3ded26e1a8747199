# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-mig-parted`: MIG by NVIDIA's command line; errors are lines of its log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import click

from nvct.cli.mig.commands import COMMANDS
from nvct.cli.mig.commands import PARTED as PROGRAM
from nvct.errors import NvctError, unexpected
from nvct.version import __version__

INCUMBENT = "0.15.0"  # The version of NVIDIA's program that has these options


@click.group(
    commands={command.name or "": command for command in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", "-d", is_flag=True, envvar="MIG_PARTED_DEBUG",
              help="Show the output of hooks, and the traceback of a bug.")  # fmt: skip
@click.version_option(
    __version__, "--version", "-v", message=f"{PROGRAM} version v{INCUMBENT}\nnvct: {__version__}"
)
def group(*, debug: bool) -> None:
    """Manage MIG partitions across the full set of NVIDIA GPUs on a node."""
    if debug:
        os.environ["NVCT_DEBUG"] = "1"


def main() -> NoReturn:
    """Run the program."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str], given: object = None) -> int:
    """Run a command line, and return the exit status."""
    try:
        status = group.main(list(words), PROGRAM, standalone_mode=False, obj=given)
    except NvctError as error:
        return _fatal(error.message, error.hint)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2
            error.show()
            return 0
        return _fatal(" ".join(error.format_message().split()).rstrip("."), "")
    except (KeyboardInterrupt, click.Abort):
        return _fatal("stopped", "")
    except Exception as error:
        if "NVCT_DEBUG" in os.environ:
            raise
        bug = unexpected(error)
        return _fatal(bug.message, bug.hint)
    return status if isinstance(status, int) else 0


def _fatal(message: str, hint: str) -> int:
    text = f"{message}: {hint}" if hint else message
    text = (text[:1].upper() + text[1:]).replace("\\", "\\\\").replace('"', '\\"')
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f'time="{now}" level=fatal msg="{text}"\n')
    return 1


if __name__ == "__main__":
    main()
