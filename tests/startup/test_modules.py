# SPDX-License-Identifier: Apache-2.0
"""The modules that each lane loads are golden files: a new import shows in the diff.

Modules, not milliseconds: they are the same on every machine. `make golden KIND=startup` rewrites them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvct.compile import plans as compiler
from nvct.container.plan import model
from nvct.container.plan.store import Store
from nvct.farm import table as farm_table
from nvct.linux import ldcache
from nvct.paths import CONFIG_ENV, OWN_PLAN, RUN_DIR_ENV
from nvct_sim import tree
from nvct_sim.bundle import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.plan.model import Farm

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent
BANNED = {
    "os", "re", "json", "typing", "dataclasses", "pathlib", "enum", "functools", "collections",
    "logging", "argparse", "subprocess", "shutil", "tempfile", "contextlib", "ctypes", "struct",
    "socket", "inspect", "traceback", "site",
}  # fmt: skip
BANNED_COLD = {
    "click", "yaml", "jsonschema", "pynvml", "rich", "subprocess", "shutil", "tempfile",
    "pathlib", "logging", "argparse", "socket", "uuid", "runpy",
}  # fmt: skip
"""What the command line does without where it answers what scripts ask most often."""
BANNED_LIST = BANNED_COLD | {"dataclasses", "typing", "inspect", "contextlib"}
COLD = """
import sys
before = set(sys.modules)
sys.path.insert(0, {repository!r})
import atexit
def show():
    print("\\n".join(sorted(set(sys.modules) - before)), file=open({modules!r}, "w"))
atexit.register(show)
sys.argv[1:] = {words!r}
from nvct.cli.__main__ import main
main()
"""
SHIM = """
import sys
before = set(sys.modules)
sys.path.insert(0, {repository!r})
import posix
from nvct.container.shim import main as shim
def show(path, args):
    posix.write(1, "\\n".join(sorted(set(sys.modules) - before)).encode())
    posix._exit(0)
shim.become = show
from nvct.container.shim.main import main
main({cold!r})
"""
HOOK = """
import sys
before = set(sys.modules)
sys.path.insert(0, {repository!r})
import posix
def show(status):
    posix.write(1, "\\n".join(sorted(set(sys.modules) - before)).encode())
    exit_now(status)
exit_now, posix._exit = posix._exit, show
from nvct.container.cdi_hook.launch import main
main({cold!r})
"""


RUNTIMES = '[nvidia-container-runtime]\nruntimes = ["/bin/true"]\n'


class Lane:
    """Runs the hot side as a launcher does, and returns the modules that it loaded."""

    def __init__(self, work: Path) -> None:
        self.work = work
        (work / "config.toml").write_text(
            f'{RUNTIMES}[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{work}/cdi"]\n',
            encoding="utf-8",
        )
        (work / "cdi").mkdir()
        (work / "cdi" / "acme.json").write_text(
            json.dumps({
                "cdiVersion": "0.5.0", "kind": "acme.com/gpu",
                "devices": [{"name": "a", "containerEdits": {
                    "env": ["A=1"], "deviceNodes": [{"path": "/dev/null"}]}}],
            }),
            encoding="utf-8",
        )  # fmt: skip
        old = time.time() - 60
        for path in (work / "config.toml", work / "cdi" / "acme.json", work / "cdi"):
            os.utime(path, (old, old))
        self.env = {
            "PATH": os.environ["PATH"],
            CONFIG_ENV: str(work / "config.toml"),
            RUN_DIR_ENV: str(work / "run"),
        }

    def python(self, code: str, *args: str, stdin: str = "") -> list[str]:
        text = code.format(repository=str(REPOSITORY), cold=sys.executable)
        base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        done = subprocess.run(
            [base, "-I", "-S", "-c", text, *args], env=self.env, check=False,
            capture_output=True, text=True, input=stdin,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [name for name in done.stdout.split() if not name.startswith("_sysconfigdata")]

    def command_line(self, *words: str) -> list[str]:
        """Run the command line on a node of plain files; return the modules that it loaded."""
        node = tree.create("plain", "h100", self.work / "nodes", native=False, nodes="plain")
        (self.work / "config.toml").write_text(
            f'[nvidia-container-cli]\nroot = "{node.driver_root}"\n[nvct]\nplain-nodes = true\n'
            f'dev-root = "{node.tree}"\nproc-root = "{node.proc}"\nsys-root = "{node.sys}"\n'
            f'farm-dir = "{self.work}/no-farm"\nhook-path = "/bin/true"\n',
            encoding="utf-8",
        )
        modules = self.work / "modules"
        text = COLD.format(repository=str(REPOSITORY), modules=str(modules), words=words)
        env = {"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(self.work / "etc")}
        (self.work / "etc").mkdir()
        (self.work / "etc/nvidia-container-runtime").symlink_to(self.work)
        for _ in range(2):  # compiles what is missing
            done = subprocess.run(
                [sys.executable, "-I", "-c", text], env=env, check=False, capture_output=True,
                text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        return modules.read_text(encoding="utf-8").split()

    def shim(self, *args: str) -> list[str]:
        self.python(SHIM, "nvidia-container-runtime", *args)  # compiles what is missing
        return self.python(SHIM, "nvidia-container-runtime", *args)

    def classic(self) -> str:
        """Keep a plan with a hook, and return a bundle that needs none."""
        edits = model.no_edits()
        edits["work"] = {
            **model.no_work(),
            "links": [["libcuda.so.580", "/usr/lib64/libcuda.so.1"]],
            "folders": ["/usr/lib64"],
        }
        edits["cache"] = [["x86_64", "libcuda.so.1", "/usr/lib64/libcuda.so.1"]]
        return self._planned("classic", edits, None)

    def farm(self) -> str:
        """Keep a plan with a view of the driver, and return a bundle that gets it."""
        view: Farm = {
            **farm_table.without_view(""),
            "view": str(self.work / "farm/580"),
            "cache": {"": [["libcuda.so.1", "lib64/libcuda.so.1"]]},
            "links": {"": [["LIBDIR/libcuda.so.1", "lib64/libcuda.so.1"]]},
        }
        (self.work / "farm/580").mkdir(parents=True)
        return self._planned("farm", model.no_edits(), view)

    def _planned(self, layout: str, edits: model.Edits, view: Farm | None) -> str:
        """Keep a plan of a driver, and return a bundle of a glibc image that asks for it."""
        toml = self.work / "config.toml"
        toml.write_text(f'{RUNTIMES}[nvct]\nlayout = "{layout}"\n', encoding="utf-8")
        os.utime(toml, (time.time() - 60,) * 2)
        plan = compiler.empty(str(toml))
        plan["specs"].append({"path": "", "facts": [], "edits": edits, "refuse": ""})
        plan["edits"].append(model.no_edits())
        plan["devices"]["nvidia.com/gpu=0"] = {"spec": 0, "edits": 0, "facts": [], "refuse": ""}
        plan["kinds"] = ["nvidia.com/gpu"]
        plan["hook"] = {"path": "/h", "args": ["h", "apply"], "env": ["A=B"]}
        if view is not None:
            plan["farm"] = view
        store = Store(str(self.work / "run"), create=True)
        store.write_json(OWN_PLAN, plan)
        store.close()
        libc = self.work / "rootfs/usr/lib64/libc.so.6"
        libc.parent.mkdir(parents=True)
        libc.touch()
        merged = ldcache.merge(None, [("libc.so.6", "/usr/lib64/libc.so.6")], machine="x86_64")
        (self.work / "rootfs/etc").mkdir()
        (self.work / "rootfs/etc/ld.so.cache").write_bytes(merged)
        return self.bundle(env=["NVIDIA_VISIBLE_DEVICES=0"])

    def bundle(
        self, annotations: dict[str, str] | None = None, env: tuple[str, ...] | list[str] = ()
    ) -> str:
        document = config(["true"], env=env, annotations=annotations)
        (self.work / "config.json").write_text(json.dumps(document), encoding="utf-8")
        return str(self.work)


def _compare(
    request: pytest.FixtureRequest, name: str, modules: list[str], banned: set[str]
) -> None:
    found = set(modules) & banned
    assert not found, f"lane {name} loads {found}"
    path = HERE / f"{name}.txt"
    text = "\n".join(m for m in modules if m.startswith("nvct")) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"lane {name} loads other modules than before"


LANES: dict[str, Callable[[Lane], list[str]]] = {
    "handover": lambda lane: lane.shim("state", "x"),
    "create-no-gpu": lambda lane: lane.shim("create", "--bundle", lane.bundle(), "x"),
    "create": lambda lane: lane.shim(
        "create", "--bundle", lane.bundle(annotations={"cdi.k8s.io/x": "acme.com/gpu=a"}), "x"
    ),
    "create-classic": lambda lane: lane.shim("create", "--bundle", lane.classic(), "x"),
    "create-farm": lambda lane: lane.shim("create", "--bundle", lane.farm(), "x"),
    "hook-apply": lambda lane: lane.python(
        HOOK, "nvidia-cdi-hook", "apply", "--link", "a::/b",
        stdin=json.dumps({"ociVersion": "1.0.2", "id": "x", "bundle": lane.bundle()}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LANES)
def test_a_lane_loads_only_what_is_recorded(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "rootfs").mkdir()

    modules = LANES[name](Lane(tmp_path))

    _compare(request, name, modules, BANNED)


COMMAND_LINES = {
    "cli-version": (["--version"], BANNED_LIST),
    "cli-cdi-list": (["cdi", "list"], BANNED_LIST),
    "cli-cdi-generate": (["cdi", "generate"], BANNED_COLD),
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_command_that_scripts_run_often_loads_only_what_is_recorded(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    words, banned = COMMAND_LINES[name]

    modules = Lane(tmp_path).command_line("nvidia-ctk", *words)

    _compare(request, name, modules, banned)
