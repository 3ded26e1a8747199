# SPDX-License-Identifier: Apache-2.0
"""A fake engine with two plain files, under the rules of real ones: edits add and remove lines.

`main` imports `extra`, which holds one line per handler. Handlers are written before the import,
so that every prefix of the edits is a configuration that starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from nvct.config.tables import KeyEdit, Path, Table
from nvct.engine.model import Change, EngineOptions, FileEdit, Files, Handler, State
from nvct.engine.modules import Syntax
from nvct.errors import EngineConfigError, EngineError

MAIN = "/etc/pair/main.conf"
EXTRA = "/etc/pair/conf.d/extra.conf"
IMPORT = b"import extra\n"


def options(*names: str, default: str = "", config: str = MAIN) -> EngineOptions:
    handlers = tuple(Handler(name=name, path=f"/usr/bin/{name}") for name in names or ("nvidia",))
    return EngineOptions(engine="pair", handlers=handlers, default=default, config=config)


def starts(main: bytes | None, extra: bytes | None) -> bool:
    """Report whether the engine would start with these files."""
    return not (main and IMPORT in main and extra is None)


class _Syntax(Syntax):
    """One list of lines."""

    def parse(self, data: bytes, path: str) -> Table:
        if b"broken" in data:
            raise EngineConfigError(f"{path} is broken")
        return {"imports": data.decode().splitlines(keepends=True)}

    def edit(self, data: bytes | None, edits: Sequence[KeyEdit], path: str) -> bytes:
        del data, path
        lines = edits[-1][1]
        return "".join(lines).encode() if isinstance(lines, list) else b""


def _needed(key: Path, item: object, left: Sequence[str]) -> bool:
    return key == ("imports",) and item == IMPORT.decode() and EXTRA in left


class Pair:
    """The fake engine's module."""

    SYNTAX: ClassVar[Syntax] = _Syntax(needed=_needed)

    @staticmethod
    def state(options: EngineOptions, files: Files) -> State:
        lines = (files.read(EXTRA) or b"").decode().splitlines()
        pairs = [line.removeprefix("handler ").split("=") for line in lines if "=" in line]
        return State(handlers=dict(pairs), files=(options.config, EXTRA))

    @staticmethod
    def plan(options: EngineOptions, files: Files) -> Change:
        main, extra = files.read(options.config), files.read(EXTRA)
        if main is not None and b"broken" in main:
            raise EngineConfigError(f"{options.config} is broken")
        text = extra or b""
        for handler in options.handlers:
            line = f"handler {handler.name}={handler.path}\n".encode()
            text += b"" if line in text else line
        new = main or b""
        new += b"" if IMPORT in new else IMPORT
        if options.default:
            new += f"default {options.default}\n".encode()
        return _change([(EXTRA, extra, text), (options.config, main, new)])


def _change(edits: Sequence[tuple[str, bytes | None, bytes | None]]) -> Change:
    made = tuple(
        FileEdit(path=path, before=before, after=after)
        for path, before, after in edits
        if before != after
    )
    return Change(edits=made, notes=("a note",))


@dataclass
class PairControl:
    """The fake engine's control; records the calls.

    Attributes:
        refuses: the error of `check`, "" for none.
        fails: how many more calls of `activate` fail.
        activated: (restart, restored) of each call.
    """

    refuses: str = ""
    fails: int = 0
    checked: list[Sequence[FileEdit]] = field(default_factory=list)
    activated: list[tuple[bool, bool]] = field(default_factory=list)

    def check(self, edits: Sequence[FileEdit]) -> list[str]:
        self.checked.append(edits)
        if self.refuses:
            raise EngineError(self.refuses)
        return []

    def activate(self, *, restart: bool, restored: bool = False) -> list[str]:
        self.activated.append((restart, restored))
        if self.fails:
            self.fails -= 1
            raise EngineError("pair does not start again: line 1: no such thing")
        return ["told"]
