# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct sim create, destroy, list, set, play, exec, shell; nvct demo."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from nvct import paths
from nvct.cli.context import warn
from nvct.cli.gostyle import GoGroup
from nvct.cli.options import format_option, show
from nvct.errors import NvctError
from nvct.host.nvml.kernel_xids import KMSG_ENV
from nvct_sim import attach, node_changes, process, profile, rootfs, run_folder, tree

EXAMPLE = """Simulated GPU nodes: real driver files, device nodes and NVML, no GPU.

\b
Example:
  nvct sim create lab --profile h100-mig
  nvct sim exec lab nvidia-smi -L
"""
CHANGES = "\n".join(f"  {name} {usage}" for name, (usage, _) in node_changes.CHANGES.items())


def _nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del param
    parent = ctx.parent.params if ctx.parent else {}
    base = parent.get("base") or tree.default_base(os.environ, os.geteuid())
    names = (node.name for node in tree.list_nodes(Path(base)))
    return [name for name in names if name.startswith(incomplete)]


NODE = click.argument("name", shell_complete=_nodes)


@click.group(cls=GoGroup, help=EXAMPLE)
@click.option("--base", type=click.Path(path_type=Path), help="Folder of all nodes.")
@click.pass_context
def sim(ctx: click.Context, base: Path | None) -> None:
    """Pass the folder on to the commands."""
    ctx.obj = base or tree.default_base(os.environ, os.geteuid())


@sim.command()
@click.argument("name")
@click.option("--profile", "kind", default="h100", show_default=True, help="The kind of node.")
@click.option("--driver-version", help="The driver's version.  [default: the profile's]")
@click.option(
    "--plain", is_flag=True, help="Plain files as device nodes, and no NVML: needs no root."
)
@click.pass_obj
def create(base: Path, name: str, kind: str, driver_version: str | None, plain: bool) -> None:
    """Make a node."""
    nodes: tree.Nodes = "plain" if plain else "auto"
    node = tree.create(
        name, kind, base, driver_version=driver_version, native=not plain, nodes=nodes
    )
    click.echo(node.tree)


@sim.command("list")
@click.option("--profiles", is_flag=True, help="List the profiles instead.")
@format_option("text")
@click.pass_obj
def list_(base: Path, *, profiles: bool, form: str) -> None:
    """List the nodes."""
    rows = [
        {"name": node.name, "profile": node.profile, "driver": node.installed,
         "gpus": len(node.state().find("gpu")), "folder": str(node.tree)}
        for node in (() if profiles else tree.list_nodes(base))
    ]  # fmt: skip
    lines = ["{name}\t{profile}\t{driver}\t{gpus} GPUs\t{folder}".format(**row) for row in rows]
    show(form, profile.names() if profiles else rows, profile.names() if profiles else lines)


@sim.command()
@NODE
@click.pass_obj
def destroy(base: Path, name: str) -> None:
    """Remove a node and its files."""
    tree.destroy(tree.find(base, name))


@sim.command("set", help=f"Change a node.\n\n\b\nChanges:\n{CHANGES}")
@NODE
@click.argument(
    "change",
    shell_complete=lambda _ctx, _param, word: [
        name for name in node_changes.CHANGES if name.startswith(word)
    ],
)
@click.argument("arguments", nargs=-1, metavar="[ARGUMENTS]...")
@click.pass_obj
def change_node(base: Path, name: str, change: str, arguments: tuple[str, ...]) -> None:
    """Change a node."""
    node_changes.apply(tree.find(base, name), change, arguments)


@sim.command("play")
@NODE
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0,
              show_default=True, help="Factor of speed.")  # fmt: skip
@click.pass_obj
def play_script(base: Path, name: str, script: Path, speed: float) -> None:
    """Change a node by a script in TOML or YAML, and return after its last step.

    Example of a step: [[step]] at = 45, gpu = 0, set = {temp = 95}, over = 10
    """
    from nvct_sim import play

    node = tree.find(base, name)
    steps = play.read(script)
    play.check(node, steps)
    play.play(node, steps, click.echo, speed=speed)


DRIVER_ROOT = click.option(
    "--driver-root", default="/", show_default=True,
    help=f"Where the driver is: / or {attach.DRIVER_ROOT}.",
)  # fmt: skip


@sim.command("exec", context_settings={"allow_interspersed_args": False})
@NODE
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@DRIVER_ROOT
@click.pass_obj
def execute(base: Path, name: str, argv: tuple[str, ...], driver_root: str) -> None:
    """Run a command on a node, in a private view of this machine.

    The exit status is the command's; 127 if there is no such command, 126 if it cannot be
    executed.

    Containers see the node's part of /proc and /sys if their engine starts them by
    /run/nvct-sim/bin/runc or crun. These come first in PATH; configure their path in an engine
    that does not use PATH (containerd: BinaryName, Podman: --runtime).
    """
    node = tree.find(base, name)
    command = argv[1:] if argv[0] == "--" else argv  # click keeps a leading "--" here
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'.")
    sys.exit(attach.exec_in(node, command, _environment(node), driver_root=driver_root))


def _environment(node: tree.Node) -> dict[str, str]:
    """Return the environment of a command on a node, whose runc comes first in PATH."""
    path = os.environ.get("PATH", ":".join(paths.DEFAULT_PATH_DIRS))
    nvct = os.path.dirname(sys.executable)  # a checkout's folder is not in PATH
    own = {"PATH": f"{run_folder.PROGRAMS}:{path}:{nvct}", KMSG_ENV: str(node.tree / tree.KMSG)}
    return {**os.environ, **own}


@sim.command()
@NODE
@DRIVER_ROOT
@click.pass_obj
def shell(base: Path, name: str, driver_root: str) -> None:
    """Start a shell on a node; its changes in /etc, /run and /dev are lost when it ends."""
    node = tree.find(base, name)
    program = os.environ.get("SHELL", "/bin/sh")
    sys.exit(attach.exec_in(node, [program], _environment(node), driver_root=driver_root))


@sim.command("replay", context_settings={"allow_interspersed_args": False})
@click.argument("snapshot", type=click.Path(exists=True))
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
@click.option("--mode", default="auto", show_default=True,
              help="Discovery mode, as of nvidia-ctk cdi generate.")  # fmt: skip
def replay_snapshot(snapshot: str, argv: tuple[str, ...], mode: str) -> None:
    """Print the CDI specification of a host that `nvct snapshot` recorded.

    With a COMMAND, run it instead, with a config.toml that makes nvct's programs see the recorded
    host. They see it without NVML, and print paths of a temporary folder.

    Example: nvct sim replay bug.tar.gz nvidia-ctk cdi generate
    """
    import subprocess

    from nvct.cdi.make import store
    from nvct_sim import replay

    command = argv[1:] if argv[:1] == ("--",) else argv
    with replay.opened(snapshot) as opened:
        if command:
            env = {**os.environ, **replay.environment(opened)}
            try:
                sys.exit(subprocess.run(command, env=env, check=False).returncode)
            except OSError as error:
                raise process.not_executed(command[0], error) from error
        try:
            spec, warnings = replay.spec(opened, mode)
        except NvctError as error:  # show paths of the recorded host, not of the tree
            error.message = opened.on_host(error.message)
            raise
    warn(warnings)
    sys.stdout.write(store.dumps(spec, "yaml").decode())


@sim.command()
def check() -> None:
    """Check whether containers can run on a simulated node here."""
    rootfs.check()
    click.echo("containers can run on a simulated node here")


@click.command()
def demo() -> None:
    """Build a simulated 8-GPU node and run real containers on it."""
    from nvct_sim.demo import main

    sys.exit(main.demonstrate())
