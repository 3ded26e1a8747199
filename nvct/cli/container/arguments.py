# SPDX-License-Identifier: Apache-2.0
"""Parses command lines as GNU argp does, which nvidia-container-cli uses.

Short options can be combined (-lb) and can have their value attached (-dFILE). Long options can be
abbreviated (--dev); their value follows "=" or is the next word. An optional value must be
attached: `--user configure` is --user without a value, then configure. Contract: no I/O.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nvct.cdi.make.naming import old_uuid
from nvct.errors import RequestError, UnknownDeviceError, UsageError
from nvct.host.model import Gpu, Inventory, MigDevice

WIDTH, COLUMN = 79, 30


class Option(NamedTuple):
    """An option: its names, the name of its value ("" for a switch), and what it does."""

    long: str
    short: str
    value: str
    text: str
    value_may_be_missing: bool = False


HELP = Option("help", "h", "", "Print this help")
VERSION = Option("version", "V", "", "Print the version")
USUAL = (HELP, VERSION)


@dataclass(slots=True)
class Parsed:
    """A parsed command line."""

    # values of each given option, by its long name; None for a missing value
    values: dict[str, list[str | None]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Report whether an option was given."""
        return name in self.values

    def text(self, name: str) -> str:
        """Return the last value of an option, "" if there is none."""
        return self.values.get(name, [None])[-1] or ""

    def texts(self, name: str) -> list[str]:
        """Return all values of an option."""
        return [value for value in self.values.get(name, []) if value is not None]

    def words(self, name: str) -> list[str]:
        """Return the words in an option's values, which are comma lists."""
        return [word for value in self.texts(name) for word in value.split(",") if word]


def parse(args: Sequence[str], options: Iterable[Option], *, in_order: bool = False) -> Parsed:
    """Parse a command line.

    UsageError if an option is unknown or ambiguous, lacks its value or takes none. `in_order`:
    stop at the first word that is not an option.
    """
    valid = (*options, *USUAL)
    parsed = Parsed()
    remaining = list(args)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            parsed.arguments += remaining
            break
        if word.startswith("--"):
            _long(word[2:], remaining, valid, parsed)
        elif word.startswith("-") and word != "-":
            _short(word[1:], remaining, valid, parsed)
        elif in_order:
            parsed.arguments += [word, *remaining]
            break
        else:
            parsed.arguments.append(word)
    return parsed


def _long(text: str, remaining: list[str], valid: Sequence[Option], parsed: Parsed) -> None:
    name, equals, attached = text.partition("=")
    fits = [option for option in valid if option.long == name] or [
        option for option in valid if option.long.startswith(name)
    ]
    if not fits:
        raise UsageError(f"no option --{name}")
    if len(fits) > 1:
        names = " or ".join(f"--{option.long}" for option in fits)
        raise UsageError(f"option --{name} is ambiguous: {names}")
    _store(fits[0], attached if equals else None, remaining, parsed)


def _short(text: str, remaining: list[str], valid: Sequence[Option], parsed: Parsed) -> None:
    while text:
        letter, text = text[0], text[1:]
        option = HELP if letter == "?" else next((o for o in valid if o.short == letter), None)
        if option is None:
            raise UsageError(f"no option -{letter}")
        if option.value:
            _store(option, text or None, remaining, parsed)
            return
        _store(option, None, remaining, parsed)


def _store(option: Option, attached: str | None, remaining: list[str], parsed: Parsed) -> None:
    value = attached
    if attached is not None and not option.value:
        raise UsageError(f"option --{option.long} takes no value such as {attached!r}")
    if attached is None and option.value and not option.value_may_be_missing:
        if not remaining:
            raise UsageError(f"option --{option.long} needs a value: {option.value}")
        value = remaining.pop(0)
    parsed.values.setdefault(option.long, []).append(value)


def usage(
    head: str, text: str, options: Iterable[Option], commands: Iterable[tuple[str, str]] = ()
) -> str:
    """Return the help of a command: synopsis, description, options, its own commands."""
    lines = [f"Usage: {head}", "", *textwrap.wrap(text, WIDTH), "", "Options:"]
    for option in (*options, *USUAL):
        value = f"={option.value}" if option.value else ""
        if option.value_may_be_missing:
            value = f"[{value}]"
        short = f"-{option.short}, " if option.short else "    "
        name = f"  {short}--{option.long}{value}"
        lines += _entry(name, option.text)
    lines += ["", "Commands:"] if commands else []
    for name, about in commands:
        lines += _entry(f"  {name}", about)
    return "\n".join(lines) + "\n"


def _entry(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - COLUMN)
    if len(name) > COLUMN - 2:
        return [name, *(" " * COLUMN + line for line in wrapped)]
    return [name.ljust(COLUMN) + wrapped[0], *(" " * COLUMN + line for line in wrapped[1:])]


BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.0)?", re.IGNORECASE)
MIG_INDEX = re.compile(r"(\d{1,9}):(\d{1,9})")
INDEX = re.compile(r"\d{1,9}")
HINT = "nvidia-container-cli info lists the GPUs; nvidia-smi -L lists MIG devices, too"


@dataclass(slots=True)
class Selected:
    """The selected devices, without duplicates, in the order of the command line."""

    everything: bool = False
    gpus: list[Gpu] = field(default_factory=list)  # including the GPUs of requested MIG devices
    migs: list[tuple[Gpu, MigDevice]] = field(default_factory=list)

    def add(self, gpu: Gpu, mig: MigDevice | None = None) -> None:
        """Add a device, unless it is already selected."""
        if gpu not in self.gpus:
            self.gpus.append(gpu)
        if mig is not None and (gpu, mig) not in self.migs:
            self.migs.append((gpu, mig))


def bus_id(text: str) -> str:
    """Return a PCI bus id in libnvidia-container's form, "" if the text is not a bus id."""
    match = BUS_ID.fullmatch(text)
    if not match:
        return ""
    domain, bus, device = (int(part, 16) for part in match.groups())
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def select(words: Iterable[str], inventory: Inventory) -> Selected:
    """Return the devices that words name; UnknownDeviceError for other words."""
    selected = Selected()
    if not inventory.gpus:
        return selected  # as libnvidia-container: words are not checked on a host without GPUs
    for word in words:
        if word.lower() == "all":
            for gpu in inventory.gpus:
                selected.add(gpu)
                for mig in gpu.mig:
                    selected.add(gpu, mig)
            selected.everything = True
            break
        _add(word, inventory, selected)
    return selected


def _add(word: str, inventory: Inventory, selected: Selected) -> None:
    bus = bus_id(word)
    for gpu in inventory.gpus:
        is_same_bus = bus and bus == bus_id(gpu.bus_id)
        if gpu.uuid.lower() == word.lower() or is_same_bus:
            selected.add(gpu)
            return
    if INDEX.fullmatch(word) and int(word) < len(inventory.gpus):
        selected.add(inventory.gpus[int(word)])
        return
    indexes = MIG_INDEX.fullmatch(word)
    for gpu in inventory.gpus:
        for mig in gpu.mig:
            pair = indexes and (int(indexes[1]), int(indexes[2])) == (gpu.index, mig.index)
            if word.lower() in (mig.uuid.lower(), old_uuid(gpu, mig).lower()) or pair:
                selected.add(gpu, mig)
                return
    raise UnknownDeviceError(f"device error: {word}: unknown device", hint=HINT)


def select_mig_capable(
    words: Sequence[str], name: str, visible: Selected, capable: set[int]
) -> list[Gpu] | None:
    """Return the visible GPUs for --mig-config or --mig-monitor, None without words.

    RequestError if the first word names a device, or only some MIG devices are visible. `capable`:
    minors of the GPUs that support MIG.
    """
    if not words:
        return None
    if words[0].lower() != "all":
        raise RequestError(
            f"{name} error: {words[0]}: only 'all' devices are supported",
            hint=f"write --{name}=all",
        )
    if visible.migs and not visible.everything:
        raise RequestError(
            f"{name} error: it needs whole GPUs, but --device names MIG devices",
            hint="write --device=all, or the index of a GPU",
        )
    return [gpu for gpu in visible.gpus if gpu.minor in capable]
