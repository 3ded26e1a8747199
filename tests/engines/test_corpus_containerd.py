# SPDX-License-Identifier: Apache-2.0
"""What configure makes of every config.toml of the corpus, as real containerd prints it."""

import pprint
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvct.engine import command, containerd, containerd_load
from nvct.engine.model import EngineOptions, Files, Handler
from nvct.errors import EngineConfigError
from tests.engines import releases
from tests.engines.box import Box

pytestmark = pytest.mark.slow
CORPUS = Path(__file__).parents[1] / "engineconf/containerd"
CONFIG = "/etc/containerd/config.toml"
MADE_LATER = ("/etc/containerd/containerd.conf.d/02-containerd.conf", "/etc/cri/conf.d/cri.toml")
PROGRAM = "/usr/bin/nvidia-container-runtime"
HANDLERS = tuple(
    Handler(name=f"nvidia{suffix.replace('.', '-')}", path=PROGRAM + suffix)
    for suffix in ("", ".cdi", ".legacy")
)
RELEASES = [
    *releases.in_full("bookworm"), releases.of_release("trixie"), *releases.in_full("forky")
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Host:
    """The folder of containerd in a box."""

    box: Box
    version: tuple[int, ...]

    def lay_out(self, source: Path) -> None:
        """Have the files of a case and nothing else in /etc/containerd."""
        folder = self.box.root / "etc/containerd"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if source.is_dir():
            shutil.copytree(source, self.box.root, dirs_exist_ok=True)
        else:
            (folder / "config.toml").write_bytes(source.read_bytes())
        for path in MADE_LATER:
            self.box.write(path, "")

    def dump(self) -> str:
        """Return what containerd prints, "" where it refuses its files."""
        completed = self.box.call("/usr/bin/containerd", f"--config={CONFIG}", "config", "dump")
        return "" if completed.returncode else completed.stdout

    def configure(self, default: str) -> EngineOptions:
        """Make the edits."""
        options = EngineOptions(
            engine="containerd", handlers=HANDLERS, default=default, config=CONFIG,
            engine_version=self.version,
        )  # fmt: skip
        for edit in containerd.plan(options, Files(str(self.box.root))).edits:
            assert edit.after is not None
            self.box.write(edit.path, edit.after.decode())
        return options


def _drivers(dump: str) -> tuple[dict[str, bool], str]:
    """Return whether each runtime has the cgroup driver systemd, and the default's name."""
    cri = containerd_load.cri_of_dump(dump)
    tables, legacy = cri.runtimes, cri.legacy
    if legacy:
        tables["default"] = legacy
    drivers = {name: cri.systemd_cgroup(table) for name, table in tables.items()}
    default = cri.default
    kind = tables.get(default, {}).get("runtime_type", "")
    return drivers, default if kind in containerd.RUNC_TYPES else "runc"


@pytest.fixture
def host(request: pytest.FixtureRequest, machine_of: Callable[[str], Box]) -> Host:
    box = machine_of(request.param)
    completed = box.call("/usr/bin/containerd", "--version")
    return Host(
        box=box,
        version=command.version("", lambda *_: command.Completed(status=0, out=completed.stdout)),
    )


@pytest.mark.parametrize("host", RELEASES, indirect=True)
@pytest.mark.parametrize("default", ["", "nvidia"])
def test_containerd_has_the_handlers_and_no_cgroup_driver_changes(
    host: Host, default: str
) -> None:
    wrong: dict[str, object] = {}
    read = 0
    for source in sorted(CORPUS.iterdir()):
        if source.name == "refused":
            continue
        host.lay_out(source)
        before = host.dump()
        if not before:
            continue
        drivers, usual = _drivers(before)
        try:
            options = host.configure(default)
        except EngineConfigError as error:
            if "reads no CRI settings" not in error.message:
                wrong[source.name] = error.message
            continue
        read += 1
        after = host.dump()
        current, _ = _drivers(after) if after else ({}, "")
        missing = containerd.missing_in_dump(options, after) if after else "refused by containerd"
        changed = {
            name: current[name]
            for name in drivers
            if name in current and current[name] != drivers[name]
        }
        other = {
            handler.name: current.get(handler.name)
            for handler in HANDLERS
            if handler.name not in drivers and current.get(handler.name) != drivers.get(usual)
        }
        host.configure(default)
        second_run = host.dump()
        if missing or changed or other or _drivers(second_run) != _drivers(after):
            wrong[source.name] = (missing, changed, other, drivers, current, second_run)
    assert not wrong, pprint.pformat(wrong)
    assert read > 10
