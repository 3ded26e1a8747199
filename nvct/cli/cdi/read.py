# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi list, validate. Options and call, no logic."""

from __future__ import annotations

import json
import sys

import click

from nvct import paths
from nvct.cli.options import GoStyle, Words, flat, format_option, say, tell, words
from nvct.errors import NvctError, line

STDIN = "-"


@click.command("list", cls=GoStyle)
@click.option("--spec-dir", type=Words(), multiple=True, envvar="NVIDIA_CTK_CDI_SPEC_DIRS",
              help="Folders to look in.  [default: /etc/cdi,/var/run/cdi]")  # fmt: skip
@format_option("text")
def list_devices(*, spec_dir: tuple[tuple[str, ...], ...], form: str) -> None:
    """Print the name of every CDI device, one a line.

    Example: nvidia-ctk cdi list
    """
    from nvct.cli.cdi import devices

    names, messages = devices.read(flat(spec_dir) or paths.CDI_SPEC_DIRS)
    if form == "json":
        click.echo(json.dumps(names, indent=2))
    for name in names if form == "text" else ():
        tell(name)
    for text in messages:
        say(text)


@click.command(cls=GoStyle)
@click.argument("files", nargs=-1, required=True)
@words("--engine", env="NVIDIA_CTK_CDI_VALIDATE_ENGINES",
       text="Only these, e.g. docker=26.0.  [default: all, as a note]")  # fmt: skip
def validate(files: tuple[str, ...], engine: tuple[tuple[str, ...], ...]) -> None:
    """Check CDI specification files, and which engines can read them.

    A - is stdin. Exits with 1 if a file is not valid, or if an engine that --engine names refuses
    it.

    Example: nvidia-ctk cdi validate --engine docker=26.0 /etc/cdi/*.yaml
    """
    from nvct.cdi import engines, load, schema  # jsonschema is slower than --help may be

    required = [engines.parse(word) for word in flat(engine)]
    bad = 0
    for path in files:
        source = "stdin" if path == STDIN else path
        try:
            if path == STDIN:
                spec = load.loads(sys.stdin.buffer.read(), source=source)
            else:
                spec = load.load_file(path)
            schema.check(spec, source=source)
        except NvctError as error:
            tell(line("invalid", error))
            bad += 1
            continue
        tell(f"valid: {source} ({spec['kind']}, {len(spec['devices'])} devices)")
        refusals = [text for version in required if (text := engines.refusal(spec, *version))]
        bad += len(refusals)
        for text in refusals if required else engines.refusals(spec):
            tell(f"  {text}")
        if engines.is_ignored(source):
            tell("  no engine reads it: they read files that end in .json or .yaml")
    sys.exit(1 if bad else 0)
