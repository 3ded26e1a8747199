# SPDX-License-Identifier: Apache-2.0
"""Files of engines and what is asked for: the change, and its removal, are golden. See README.md here."""

import difflib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvct.engine import modules
from nvct.engine.model import Change, EngineOptions, Handler, State
from nvct.errors import NvctError, line
from tests.unit.engine.tree import Tree, removal

HERE = Path(__file__).parent / "plans"
SHIM = "/usr/bin/nvidia-container-runtime"


@dataclass
class Case:
    """Files of an engine, and options."""

    engine: str
    name: str
    wishes: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)

    def options(self) -> EngineOptions:
        wishes = {"handlers": f"nvidia={SHIM}", "version": "", **self.wishes}
        pairs = (word.split("=") for word in wishes.pop("handlers").split())
        more: dict[str, Any] = {
            key: json.loads(value) for key, value in wishes.items() if key != "version"
        }
        for key, value in more.items():
            more[key] = tuple(value) if isinstance(value, list) else value
        return EngineOptions(
            engine=self.engine,
            handlers=tuple(Handler(name=name, path=path) for name, path in pairs),
            engine_version=tuple(map(int, filter(None, wishes["version"].split(".")))),
            dump=_text(self.files.get("dump", [])),
            **{"config": modules.CONFIG[self.engine], **more},
        )


def _text(lines: list[str]) -> str:
    return "".join(f"{text}\n" for text in lines)


def _cases(engine: str) -> Iterator[Case]:
    texts: dict[str, list[str]] = {}
    for part in (HERE / f"{engine}.txt").read_text(encoding="utf-8").split("=== ")[1:]:
        name, *lines = part.rstrip("\n").split("\n")
        if name.startswith("@"):
            texts[name] = lines
            continue
        case = Case(engine, name)
        content: list[str] | None = None
        for text in lines:
            if text.startswith("--- "):
                content = case.files.setdefault(text[4:], [])
            elif content is None:
                key, _, value = text.partition(": ")
                case.wishes[key] = value
            else:
                content += texts.get(text, [text])
        yield case


CASES = [case for engine in modules.ENGINES for case in _cases(engine)]


def _shown(change: Change) -> Iterator[str]:
    yield from (f"# {note}" for note in change.notes)
    if change.edits and not change.restart:
        yield "# without a restart"
    for edit in change.edits:
        old, new = ((data or b"").decode().splitlines() for data in (edit.before, edit.after))
        name = edit.path + " removed" * (edit.after is None)
        yield from difflib.unified_diff(old, new, name, name, n=0, lineterm="")


def _state(state: State) -> str:
    runtimes = " ".join(f"{name}={path}" for name, path in state.handlers.items())
    folders = f", folders {' '.join(state.spec_dirs)}" if state.spec_dirs else ""
    return f"= default {state.default or 'its own'}, CDI {state.cdi}{folders}: {runtimes}"


def _outcome(case: Case, tree: Tree) -> Iterator[str]:
    """Yield what is changed, what the engine reads then, and what removal does."""
    options, module = case.options(), modules.of(case.engine)
    try:
        change = module.plan(options, tree)
    except NvctError as error:
        yield line("nvct", error)
        return
    yield from _shown(change)
    before = {edit.path: edit.before for edit in change.edits}
    tree.apply(change)
    yield _state(module.state(options, tree))
    assert module.plan(options, tree).edits == (), "a second time"
    back = removal(options, tree)
    tree.apply(back)
    if before and {path: tree.read(path) for path in before} == before:
        yield from (f"# {note}" for note in back.notes)
        yield "= removal gives the files back" + ", without a restart" * (not back.restart)
    else:
        yield from _shown(back)
    assert removal(options, tree).edits == (), "a second removal"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.engine}-{case.name}")
def test_what_is_asked_for(case: Case, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    tree = Tree(tmp_path)
    for path, lines in case.files.items():
        if path != "dump":
            tree.write(path, _text(lines))

    text = _text(list(_outcome(case, tree)))

    golden(f"engineconf/plans/{case.engine}/{case.name.replace(' ', '-')}.txt", text)


def test_each_case_has_a_name_of_its_own() -> None:
    assert len({(case.engine, case.name) for case in CASES}) == len(CASES) > 150
