# SPDX-License-Identifier: Apache-2.0
"""The launchers in all their forms, and a folder for them with a fake runtime and interpreter."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct.config.model import Config, path_from
from nvct.container import settings
from nvct.container.plan import fingerprints
from nvct.launcher.install import HOOKS, Built
from tests.support.launcher import PRINT_ARGS, Answer, ask, compiled, script, scripted

FORMS = ("c", "sh", "bash", "busybox")
PROGRAM, HOOK = "nvidia-container-runtime", "nvidia-cdi-hook"


class Lab:
    """A run directory, a config.toml, a bundle, and `runc` in a folder of PATH.

    Attributes:
        home: of everything.
        form: which launcher, one of FORMS.
        env: with which it is started.
    """

    def __init__(self, home: Path, launchers: Path, form: str) -> None:
        self.home = home
        self.form = form
        self.launchers = launchers
        self.python = os.fsencode(launchers / "python")
        for name in ("bin", "run", "bundle"):
            (home / name).mkdir(0o700)
        self.config.write_text("# nothing\n")
        self.age(self.config)
        self.runc = script(home / "bin" / "runc", PRINT_ARGS)
        self.env = {
            "PATH": f"{home}/bin:{os.environ['PATH']}",
            "NVCT_RUN_DIR": f"{home}/run",
            "NVIDIA_CTK_CONFIG_FILE_PATH": str(self.config),
        }

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    @property
    def conf(self) -> Path:
        return self.home / "run" / "launcher.conf"

    def age(self, path: Path, seconds: float = 3600) -> None:
        at = time.time_ns() - int(seconds * 10**9)
        os.utime(path, ns=(at, at))

    def keep(self, runtimes: Sequence[str] = ("runc",), **values: Sequence[str]) -> None:
        config = Config(runtimes=tuple(runtimes), **values)
        path = path_from(self.env)
        fact = fingerprints.take_file(path, time.time_ns())
        assert fact[0] != "hash"
        self.conf.write_text(settings.launcher_conf(config, path, fact))
        self.conf.chmod(0o600)

    def bundle(self, text: str | bytes | dict[str, object]) -> str:
        if isinstance(text, dict):
            text = json.dumps(text)
        data = text.encode() if isinstance(text, str) else text
        (self.home / "bundle" / "config.json").write_bytes(data)
        return str(self.home / "bundle")

    def run(self, *args: str | bytes, name: str = PROGRAM, data: bytes = b"") -> Answer:
        program = self.launchers / ("c" if self.form == "c" else "sh") / name
        shell = {"bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}.get(self.form, [])
        shell = [shutil.which(word) or word for word in shell[:1]] + shell[1:]
        answer = ask([*shell, str(program), *args], self.env, self.home, data)
        assert answer.stderr == b""
        return answer

    def went_to(self, *args: str | bytes) -> str:
        """Return which program was started: "python", or the runtime's path below home."""
        answer = self.run(*args)
        assert answer.status == 0
        if answer.words[0] == self.python:
            return "python"
        return os.fsdecode(answer.words[0]).removeprefix(f"{self.home}/")


@pytest.fixture(scope="session")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `python`, a fake one, and the launchers in `c` and `sh`."""
    folder = tmp_path_factory.mktemp("launchers of all kinds")
    python = script(folder / "python", PRINT_ARGS)
    built = Built(python=str(python), packages="/pack ages", cold="/ve nv/bin/python")
    for form in ("c", "sh"):
        (folder / form).mkdir()
    scripted(folder / "sh" / PROGRAM, built)
    if shutil.which("cc"):
        compiled(folder / "c", built, name=PROGRAM)
        for name in HOOKS:
            (folder / "c" / name).hardlink_to(folder / "c" / PROGRAM)
    return folder


def _lab(form: str, launchers: Path, home: Path) -> Lab:
    needed = {"c": "cc", "bash": "bash", "busybox": "busybox"}.get(form, "sh")
    if shutil.which(needed) is None:
        pytest.skip(f"needs {needed}")
    return Lab(home, launchers, form)


@pytest.fixture
def lab(launchers: Path, tmp_path: Path) -> Lab:
    """The C launcher: the others only start Python."""
    return _lab("c", launchers, tmp_path)


@pytest.fixture(params=FORMS)
def any_lab(request: pytest.FixtureRequest, launchers: Path, tmp_path: Path) -> Lab:
    return _lab(request.param, launchers, tmp_path)


@pytest.fixture(params=FORMS[1:])
def sh_lab(request: pytest.FixtureRequest, launchers: Path, tmp_path: Path) -> Lab:
    return _lab(request.param, launchers, tmp_path)
