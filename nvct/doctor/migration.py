# SPDX-License-Identifier: Apache-2.0
"""Plans how the files of NVIDIA's programs, except those of engines, change for nvct. Cold.

Contract: nothing here changes the host; `fix` carries it out. Specifications of nvidia-ctk have
the same devices as nvct's, units that NVIDIA's packages leave in /etc hide nvct's units, and hook
files name NVIDIA's hook program. config.toml stays: nvct reads it.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nvct.cdi.check.conflicts import EffectiveSpec
from nvct.cdi.make import provenance
from nvct.cdi.read import load, registry
from nvct.doctor import incumbent
from nvct.doctor.fix import Step
from nvct.doctor.model import count, listed
from nvct.doctor.parts import NAMED, UNITS
from nvct.engine import engine_files, json_file, undo, writing
from nvct.engine.journal import Entry
from nvct.engine.model import FileEdit
from nvct.engine.writing import ABSENT, PathState, state_of
from nvct.errors import NvctError
from nvct.paths import DEFAULT_PATH_DIRS, GPU_KIND, RUNTIME_HOOK_ALIAS, RUNTIME_HOOK_PROGRAM

NAME = "migrate.journal"
STAYS = "stays"
HOOK_KEY = ("hook", "path")
UNITS_OF_ADMINS = "etc/systemd/system"
UNITS_OF_PACKAGES = ("usr/lib/systemd/system", "lib/systemd/system")
OWN = b"nvct"
"""Occurs in each of nvct's units, in Documentation=."""
TASKS = ("run/containerd", "run/docker/containerd/daemon")
"""State folders of containerd, and of the containerd that Docker starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file, its new state, and why; by default, the file does not change."""

    path: str
    why: str
    before: PathState = ABSENT
    after: PathState = ABSENT

    @property
    def action(self) -> str:
        """A verb for what happens to the file."""
        if self.after == self.before:
            return STAYS
        if self.after == ABSENT:
            return "goes"
        return "changes" if self.before.mode else "is made"

    def __str__(self) -> str:
        return f"{self.path} {self.action}: {self.why}"


@contextmanager
def collected(errors: list[NvctError]) -> Iterator[None]:
    """Add an error of the block to a list, so that the caller goes on."""
    try:
        yield
    except NvctError as error:
        errors.append(error)


def becomes(path: str, after: PathState, why: str) -> Item:
    """Return the item of a path that gets a new state."""
    return Item(path=path, why=why, before=state_of(path), after=after)


def edited(edit: FileEdit, why: str) -> Item:
    """Return the item of an edit."""
    file = PathState(mode=stat.S_IFREG)
    before, after = file.with_content(edit.before), file.with_content(edit.after)
    return Item(path=edit.path, why=why, before=before, after=after)


def incumbents_specs(folders: Sequence[str]) -> list[EffectiveSpec]:
    """Return the specifications of GPUs that nvidia-ctk wrote, which their hooks show."""
    specs = [
        EffectiveSpec(file=file, devices=tuple(file.spec["devices"]))
        for file in registry.scan(folders).specs
        if file.spec["kind"] == GPU_KIND and provenance.read(file.spec, file.path) is None
    ]
    return [spec for spec in specs if incumbent.programs_of([spec])]


def other_specs(folders: Sequence[str], moved: Sequence[EffectiveSpec]) -> Iterator[Item]:
    """Yield the specifications of NVIDIA's devices that stay, and the unreadable ones."""
    scanned = registry.scan(folders)
    for path, error in scanned.errors.items():
        yield Item(path=path, why=f"it cannot be used: {error.message}")
    for file in scanned.specs:
        kind = file.spec["kind"]
        is_nvidias = "nvidia.com/" in kind and provenance.read(file.spec, file.path) is None
        if is_nvidias and file.path not in [spec.file.path for spec in moved]:
            why = "no hook shows that nvidia-ctk wrote it; remove it if nvct's has its devices"
            yield Item(path=file.path, why=why if kind == GPU_KIND else f"its kind is {kind}")


def specifications(
    specs: Sequence[EffectiveSpec], output: str, publish: Callable[[str], Step]
) -> Iterator[Item]:
    """Yield nvct's specification, and those of nvidia-ctk that it replaces.

    nvct's goes to `output`; if that is "", it replaces the file with the most of its devices.
    Files without its devices stay. NvctError if nvct's cannot be made.
    """
    if not specs:
        return
    target, states, names = _chosen(specs, output, publish)
    but_not, rows = "", []
    for spec in specs:
        path = spec.file.path
        is_target = os.path.realpath(path) == os.path.realpath(target)
        lost = [spec.name(device) for device in spec.devices if device["name"] not in names]
        vanish = f", but not the names {listed(lost, NAMED)}" if lost else ""
        if not names:
            rows.append(Item(path=path, why="without a driver, nvct has no GPUs to describe"))
        elif len(lost) == len(spec.devices):
            states = {} if is_target else states
            why = f"nvct's has none of its devices: {listed(lost, NAMED)}"
            rows.append(Item(path=path, why=why))
        elif is_target:
            but_not = vanish
        else:
            why = f"nvidia-ctk wrote it, and {target} has its devices{vanish}"
            rows.append(becomes(path, ABSENT, why))
    for path, state in states.items():
        yield becomes(path, state, f"nvct describes the GPUs{but_not}")
    yield from rows


def _chosen(
    specs: Sequence[EffectiveSpec], output: str, publish: Callable[[str], Step]
) -> tuple[str, Mapping[str, PathState], set[str]]:
    """Return the path of nvct's specification, the states to write, and its devices' names."""
    target = output or specs[0].file.path
    states, names = _published(target, publish)
    shared = {
        spec.file.path: sum(device["name"] in names for device in spec.devices) for spec in specs
    }
    best = max(shared, key=lambda path: shared[path])
    if not shared[best]:
        return target, {}, names
    if not output and best != target:
        return best, *_published(best, publish)
    return target, states, names


def _published(
    output: str, publish: Callable[[str], Step]
) -> tuple[Mapping[str, PathState], set[str]]:
    """Return the states to write for nvct's specification, and the names of its devices."""
    states = {} if is_own(state_of(output)) else publish(output).plan()
    new = [load.loads(state.data, source=path) for path, state in states.items() if state.mode]
    if not states:
        new = [load.load_file(output)]
    return states, {device["name"] for spec in new for device in spec["devices"]}


def is_own(state: PathState) -> bool:
    """Report whether a file is a specification that nvct wrote."""
    mark = f"{provenance.DOMAIN}generator"
    return state.is_file and (state.text.startswith(provenance.COMMENT) or mark in state.text)


def own_unit(name: str, root: str = "/") -> str:
    """Return the path of a unit of nvct's packages, "" if it is not installed."""
    paths = (os.path.join(root, folder, name) for folder in UNITS_OF_PACKAGES)
    return next((path for path in paths if OWN in state_of(path).data), "")


def units(errors: list[NvctError], root: str = "/") -> Iterator[Item]:
    """Yield the units that NVIDIA's packages left in /etc, and the links that enable them."""
    folder = os.path.join(root, UNITS_OF_ADMINS)
    for name in UNITS:
        with collected(errors):
            path, own = f"{folder}/{name}", own_unit(name, root)
            state = state_of(path)
            if not state.is_file or OWN in state.data:  # a link to /dev/null is an admin's choice
                continue
            runs = "it runs nvidia-ctk; nvct's packages have a unit for that"
            yield becomes(path, ABSENT, f"it hides {own}" if own else runs)
            for link in sorted(glob.glob(f"{glob.escape(folder)}/*.wants/{name}")):
                current = state_of(link)
                if stat.S_ISLNK(current.mode) and os.path.basename(current.text) == name:
                    after = replace(current, text=own) if own else ABSENT
                    yield becomes(link, after, "it enables the unit")
    for path in sorted(glob.glob(f"{glob.escape(folder)}/*.service")):
        with collected(errors):
            data = state_of(path).data
            if os.path.basename(path) not in UNITS and b"nvidia-ctk cdi generate" in data:
                why = "an admin wrote it; nvct's unit generates the specification, too"
                yield Item(path=path, why=why)


def hooks(program: str, errors: list[NvctError], root: str = "/") -> Iterator[Item]:
    """Yield the hook files of Podman and CRI-O that name NVIDIA's hook program or nvct's."""
    for folder in incumbent.HOOKS:
        for path in sorted(glob.glob(os.path.join(glob.escape(root), folder, "*.json"))):
            named = incumbent.hook_program(path)
            if os.path.basename(named) in (RUNTIME_HOOK_PROGRAM, RUNTIME_HOOK_ALIAS):
                with collected(errors):
                    yield _hook(path, named, program)


def _hook(path: str, named: str, program: str) -> Item:
    """Return a hook file's item, which gives it nvct's program; NvctError if that fails."""
    if not os.access(program, os.X_OK):
        return Item(path=path, why=f"{program} does not exist: install the package nvct")
    if os.path.realpath(named) == os.path.realpath(program):
        return Item(path=path, why=f"{named} is nvct's already")
    if not os.access(os.path.dirname(path), os.W_OK):
        return Item(path=path, why=f"its folder is read-only; it names {named}")
    path = writing.target(path)
    state = state_of(path)
    data = json_file.edit(state.data, [(HOOK_KEY, program)], path)
    return becomes(path, state.with_content(data), f"{named} becomes {program}")


def programs_in_use(root: str = "/") -> dict[str, list[str]]:
    """Return the runtimes with NVIDIA's name that containerd's containers need, with their ids."""
    programs: dict[str, list[str]] = {}
    for folder in TASKS:
        for id_, program in engine_files.runtimes_in_use(os.path.join(root, folder)):
            if undo.is_nvidia_runtime(program):
                programs.setdefault(program, []).append(id_)
    return programs


def links(
    programs: Mapping[str, Sequence[str]], own_folder: str, root: str = "/"
) -> Iterator[Item]:
    """Yield a link to nvct's runtime for each removed program that containers need."""
    for program, ids in programs.items():
        path = _link(program)
        own = os.path.join(own_folder, os.path.basename(program))
        is_there = shutil.which(program, path=":".join(DEFAULT_PATH_DIRS)) if root == "/" else None
        at = os.path.join(root, path.lstrip("/"))
        is_writable = os.access(os.path.dirname(at), os.W_OK)
        if is_there or os.path.lexists(at) or not is_writable or not os.access(own, os.X_OK):
            continue
        why = f"{count(len(ids), 'running container')} can only be stopped with it"
        link = PathState(mode=stat.S_IFLNK | 0o777, uid=os.geteuid(), gid=os.getegid(), text=own)
        yield becomes(at, link, why)


def _link(program: str) -> str:
    return program if "/" in program else f"/usr/local/bin/{program}"  # on any engine's PATH


def needed(entry: Entry) -> str:
    """Return why a link to nvct's runtime must stay for now, "" if it need not."""
    if not stat.S_ISLNK(entry.after.mode) or entry.before != ABSENT:
        return ""
    ids = [
        id_ for name, ids in programs_in_use().items() if _link(name) == entry.path for id_ in ids
    ]
    why = f"{count(len(ids), 'running container')} can only be stopped with it; "
    why += "run `nvct migrate back` again when they have ended"
    return why if ids else ""


def rest(entry: Entry, current: PathState) -> PathState | None:
    """Return the state at the move back of a path that was written since, None to leave it.

    nvct's unit may have rewritten the specification, or removed it with the packages: it gets its
    former state. A hook file gets its former program, and keeps other edits.
    """
    if is_own(entry.after) and (is_own(current) or current == ABSENT):
        return entry.before
    if not (entry.path.endswith(".json") and current.is_file and entry.after.is_file):
        return None
    try:
        former, own, there = (
            json_file.parse(state.data, entry.path).get(HOOK_KEY, str)
            for state in (entry.before, entry.after, current)
        )
        if there != own:
            return None
        data = json_file.edit(current.data, [(HOOK_KEY, former)], entry.path)
    except NvctError:
        return None
    return current.with_content(data)
