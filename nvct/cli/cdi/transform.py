# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi transform root. Options and call, no logic."""

from __future__ import annotations

import sys
from typing import Any, cast

import click

from nvct.cli.gostyle import LazyGroup
from nvct.cli.options import GoStyle, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.cdi.types import Spec

STD = ("", "-")


@click.command("root", cls=GoStyle)
@click.option("--from", "source", default="/", show_default=True, help="Root to replace.")
@click.option("--to", "target", default="/", show_default=True, help="Root to put in its place.")
@click.option("--input", "input_path", default="-", help="File to read.  [default: stdin]")
@click.option("--output", default="", help="File to write.  [default: stdout]")
@click.option("--relative-to", type=click.Choice(["host", "container"], case_sensitive=False),
              default="host", show_default=True,
              help="Whose paths: of the host, or in the container.")  # fmt: skip
def root(*, source: str, target: str, input_path: str, output: str, relative_to: str) -> None:
    """Move the paths of a CDI specification from one root to another.

    The result is written for the lowest CDI version that it needs.

    Example: nvidia-ctk cdi transform root --from /host --to / --input spec.yaml
    """
    from nvct.cdi import load, store
    from nvct.cli.cdi.generate import is_read_by_engines
    from nvct.paths import CDI_SPEC_DIRS
    from nvct.spec import transform

    if input_path in STD:
        spec = load.loads(sys.stdin.buffer.read(), source="stdin")
    else:
        spec = load.load_file(input_path)
    move = {"host": transform.move_host_root, "container": transform.move_container_root}
    moved = cast("Spec", move[relative_to](cast("dict[str, Any]", spec), source, target))
    if output in STD:
        sys.stdout.write(store.dumps(moved).decode())
        return
    follow = not is_read_by_engines(output, CDI_SPEC_DIRS)
    say(f"wrote {len(moved['devices'])} devices to {store.save(moved, output, follow=follow)}")


COMMANDS = {
    "root": ("nvct.cli.cdi.transform", "root", "Move paths from one root to another."),
}

transform = LazyGroup("transform", COMMANDS, "Change CDI specifications.")
