# SPDX-License-Identifier: Apache-2.0
"""The agent's log on stderr: a line of text or of JSON for each event."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO, TypeVar

from nvct.errors import NvctError, UsageError
from nvct.oci import jsontext

T = TypeVar("T")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.recorder import Outcome, Recorder

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
LEVEL_ENV, FORMAT_ENV = "NVCT_LOG_LEVEL", "NVCT_LOG_FORMAT"
EXPORTER_FORMAT_ENV = "DCGM_EXPORTER_LOG_FORMAT"
"""The variable of NVIDIA's exporter; it counts if FORMAT_ENV is not set."""
FLAGS = {"log-level": (LEVEL_ENV, LEVELS), "log-format": (FORMAT_ENV, FORMATS)}
"""Flags of all the agent's programs, besides those of NVIDIA's: variable and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Writes the lines that have at least some level."""

    level: str = "info"  # the lowest one that is written
    form: str = "text"  # text or json
    target: TextIO | None = field(default=None, repr=False)  # None is stderr
    recorder: Recorder | None = field(default=None, repr=False)

    def warned(self, found: tuple[T, Iterable[str]]) -> T:
        """Log the warnings of a pair of result and warnings; return the result."""
        result, warnings = found
        for warning in warnings:
            self.warning(warning)
        return result

    def debug(self, text: str) -> None:
        """Write what only a developer needs."""
        self._write("debug", text)

    def info(self, text: str) -> None:
        """Write what happened."""
        self._write("info", text)

    def warning(self, text: str) -> None:
        """Write what works less well than it should."""
        self._write("warning", text)

    def error(self, text: str) -> None:
        """Write what does not work."""
        self._write("error", text)

    def decided(self, task: str, outcome: Outcome, about: str, **texts: str) -> None:
        """Record a decision, see `Recorder.decided`; no line is written."""
        if self.recorder is not None:
            self.recorder.decided(task, outcome, about, **texts)

    def refused(self, task: str, about: str, error: NvctError) -> None:
        """Record why something was refused; no line is written."""
        self.decided(task, "refused", about, error=error.message, code=error.code, hint=error.hint)

    def _write(self, level: str, text: str) -> None:
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        seconds = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        stamp = f"{moment}.{int(seconds * 1000) % 1000:03}Z"
        text = " ".join(text.splitlines())
        line = (
            jsontext.dumps({"time": stamp, "level": level, "message": text})
            if self.form == "json"
            else f"{stamp} {level}: {text}"
        )
        target = self.target or sys.stderr
        target.write(f"{line}\n")
        target.flush()


class Problem:
    """Why something does not work now, "" while it works; a reason is logged once in a row.

    `write`: the log's method for the level of such a problem.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self.text = ""
        self._write = write

    def tell(self, error: NvctError, before: str = "", after: str = "") -> None:
        """Log a reason between two other texts, unless it is the same as the last one."""
        text = sentence(error)
        if text != self.text:
            self.text = text
            self._write(f"{before}{text}{after}")

    def clear(self) -> None:
        """Note that it works."""
        self.text = ""


def sentence(error: NvctError) -> str:
    """Return an error's message, with its hint in parentheses."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def from_environment(env: Mapping[str, str]) -> Log:
    """Return the log of NVCT_LOG_LEVEL and NVCT_LOG_FORMAT; UsageError if a value is unknown."""
    form_env = FORMAT_ENV if FORMAT_ENV in env else EXPORTER_FORMAT_ENV
    for name, choices in ((LEVEL_ENV, LEVELS), (form_env, FORMATS)):
        if env.get(name, choices[0]) not in choices:
            hint = f"it is one of {', '.join(choices)}"
            raise UsageError(f"{name}={env[name]!r} is unknown", hint=hint)
    return Log(level=env.get(LEVEL_ENV, "info"), form=env.get(form_env, "text"))


def from_command_line(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words without FLAGS, and the values of FLAGS by variable.

    UsageError if a value is missing or unknown.
    """
    rest: list[str] = []
    values: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        flag, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or flag not in FLAGS:
            rest.append(word)
            continue
        if not equals and not left:
            raise UsageError(f"--{flag} needs a value")
        variable, choices = FLAGS[flag]
        values[variable] = value if equals else left.pop(0)
        if values[variable] not in choices:
            hint = f"it is one of {', '.join(choices)}"
            raise UsageError(f"invalid --{flag} option: {values[variable]!r}", hint=hint)
    return rest, values


def help_text() -> str:
    """Return the lines of --help about FLAGS."""
    lines = ""
    for flag, (variable, choices) in FLAGS.items():
        default = getattr(Log(), "level" if variable == LEVEL_ENV else "form")
        lines += f"  --{flag} VALUE\n        For the log on stderr: {', '.join(choices)} "
        lines += f"[{variable}]\n        default: {default}\n"
    return lines
