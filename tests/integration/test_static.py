# SPDX-License-Identifier: Apache-2.0
"""nvct-hot, the hot side in one static file: what it needs, what it ignores, what it passes on.

That it does what an interpreter does is shown by the tests of the shim and the hooks, which
`make test-static` runs against it.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.launcher import install as launch
from tests.support import hot as static
from tests.support.launcher import PRINT_ARGS, ask, compiled, script
from tests.support.processes import captured
from tests.support.shim_lab import PYTHON, REPOSITORY, Lab

pytestmark = pytest.mark.engine

PROGRAM = "nvidia-container-runtime"
NOOP = "#include <stdio.h>\nint main(int n, char **v) { for (int i = 0; i < n; i++) puts(v[i]); return 0; }\n"
IN_ROOT = """
set -eu
mkdir -p "$1/proc" "$1$2"
mount --rbind "$2" "$1$2"
mount -t proc proc "$1/proc"
shift 2
exec "$@"
"""


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return static.executable(tmp_path_factory.mktemp("hot"))


@pytest.fixture
def lab(hot: Path, tmp_path: Path) -> Iterator[Lab]:
    """A host for the shim, whose programs are nvct-hot under their names, in tmp_path."""
    made = Lab()
    built = launch.Built(python=PYTHON, packages="/none", cold=made.cold, hot=str(hot))
    launch.install(tmp_path, "static", built)
    yield made
    made.remove()


def run(
    lab: Lab, words: list[str | Path], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return captured(
        words, env={**lab.env, **(env or {})}, cwd=lab.home, timeout=60, stdin=subprocess.DEVNULL
    )


def ask_for_device(lab: Lab) -> None:
    lab.spec(kind="acme.com/gpu")
    lab.asks(annotations={"cdi.k8s.io/x": "acme.com/gpu=0"})


def create(lab: Lab, program: Path, env: dict[str, str] | None = None) -> str:
    """Run a create that must succeed; return config.json as it is then."""
    said = run(lab, [program, "create", "--bundle", lab.bundle, "x"], env)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"runc create --bundle {lab.bundle} x\n"
    return lab.config_json.read_text()


def test_the_same_sources_give_the_same_bytes(hot: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another checkout"
    shutil.copytree(
        REPOSITORY / "nvct", copy / "nvct", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(REPOSITORY / "packaging/static", copy / "packaging/static")

    done = static.build(tmp_path / "again", copy, restore_signals=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again").read_bytes() == hot.read_bytes()


def test_it_says_what_is_inside(hot: Path) -> None:
    said = captured([hot, "--about"], check=True).stdout

    assert re.fullmatch(
        r"nvct \S+\nPython 3\.\d+\.\d+\S*, source package of Debian\nmusl \S+\n", said
    )


def test_a_create_in_an_empty_root_gives_what_an_interpreter_gives(
    lab: Lab, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    ask_for_device(lab)
    asked = lab.config_json.read_bytes()
    expected = lab.create()
    assert expected.status == 0, expected.stderr
    changed = lab.config_json.read_bytes()
    assert changed != asked
    lab.config_json.write_bytes(asked)
    (lab.home / "noop.c").write_text(NOOP)
    runc = lab.home / "bin/runc"
    subprocess.run(["cc", "-static", "-o", runc, lab.home / "noop.c"], check=True)
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(tmp_path / PROGRAM, root / PROGRAM)
    words: list[str | Path] = ["unshare", "--mount", "sh", "-c", IN_ROOT, "sh", root, lab.home]
    words += ["chroot", root, f"/{PROGRAM}", "create", "--bundle", lab.bundle, "x"]

    said = run(lab, words, {"PATH": os.environ["PATH"]})

    assert said.stderr == ""
    assert said.returncode == 0
    assert said.stdout == f"{runc}\ncreate\n--bundle\n{lab.bundle}\nx\n"
    assert lab.config_json.read_bytes() == changed
    assert sorted(os.listdir(root)) == sorted([PROGRAM, lab.home.parts[1], "proc"])


def test_without_a_cold_side_a_request_fails_and_says_why(lab: Lab, tmp_path: Path) -> None:
    built = launch.Built(
        python=PYTHON, packages="/none", cold="/no/cold", hot=str(tmp_path / PROGRAM)
    )
    (tmp_path / "bin").mkdir()
    launch.install(tmp_path / "bin", "static", built)
    lab.asks("NVIDIA_VISIBLE_DEVICES=all")

    said = run(lab, [tmp_path / "bin" / PROGRAM, "create", "--bundle", lab.bundle, "x"])

    assert said.returncode == 1
    assert said.stdout == ""
    assert re.fullmatch(f"{PROGRAM}: .* failed: /no/cold cannot be started; .*\n", said.stderr)


def test_without_a_cold_side_other_containers_are_created(lab: Lab, tmp_path: Path) -> None:
    lab.asks()
    create(lab, tmp_path / PROGRAM)  # what reads config.toml is there, so that it is kept
    built = launch.Built(
        python=PYTHON, packages="/none", cold="/no/cold", hot=str(tmp_path / PROGRAM)
    )
    launch.install(tmp_path, "static", built)

    create(lab, tmp_path / PROGRAM)


@pytest.mark.parametrize(
    "env",
    [
        {"LD_PRELOAD": "HOME/evil.so"},
        {
            "PYTHONPATH": "HOME/evil",
            "PYTHONHOME": "HOME/evil",
            "PYTHONSTARTUP": "HOME/evil/nvct.py",
        },
        {"PYTHONINSPECT": "1", "PYTHONDEBUG": "3", "PYTHONVERBOSE": "2", "PYTHONDEVMODE": "1"},
        {"PYTHON_FROZEN_MODULES": "off", "PYTHONUTF8": "0", "PYTHONMALLOC": "debug"},
        {
            "LC_ALL": "nonsense",
            "LANG": "de_DE",
            "TZ": ":/dev/nonsense",
            "PYTHONIOENCODING": "utf-16",
        },
    ],
    ids="-".join,
)
def test_no_variable_and_no_folder_has_a_say(
    lab: Lab, tmp_path: Path, env: dict[str, str]
) -> None:
    evil = lab.home / "evil"
    evil.mkdir()
    for folder in (evil, lab.home):  # lab.home is the working directory
        for name in ("nvct", "posix", "_json", "encodings", "sitecustomize", "errno"):
            (folder / f"{name}.py").write_text("print('evil'); raise SystemExit(3)\n")
    script(lab.home / "bin/runc", 'echo "runc $*"; /usr/bin/env > env\n')
    ask_for_device(lab)
    given = {name: value.replace("HOME", str(lab.home)) for name, value in env.items()}
    preload = given.get("LD_PRELOAD")
    if preload:  # a library that ends whatever loads it, but for the shell behind runc
        source = lab.home / "evil.c"
        source.write_text(
            "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
            "extern char *program_invocation_short_name;\n"
            "__attribute__((constructor)) static void evil(void)\n"
            f'{{ if (!strcmp(program_invocation_short_name, "{PROGRAM}")) _exit(3); }}\n'
        )
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", preload, source], check=True
        )

    create(lab, tmp_path / PROGRAM, given)

    handed = (lab.home / "env").read_text().splitlines()
    assert {f"{name}={value}" for name, value in given.items()} <= set(handed)
    assert not [line for line in handed if line.startswith("LC_CTYPE=")]


@pytest.mark.parametrize("asks", [False, True], ids=["plain", "device"])
def test_the_runtime_ignores_no_signal_that_we_or_our_parent_ignored(
    lab: Lab, tmp_path: Path, *, asks: bool
) -> None:
    lab.asks()
    if asks:
        ask_for_device(lab)
    script(lab.home / "bin/runc", "grep SigIgn /proc/self/status\n")

    def ignore() -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)

    said = captured(
        [tmp_path / PROGRAM, "create", "--bundle", lab.bundle, "x"], env=lab.env, check=True, timeout=60, preexec_fn=ignore,
    ).stdout  # fmt: skip

    ignored = int(said.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


def test_arguments_and_variables_are_handed_on_to_the_byte(lab: Lab, tmp_path: Path) -> None:
    ask_for_device(lab)
    script(lab.home / "bin/runc", PRINT_ARGS + "printf '%s\\0' \"$ODD\"\n")
    args = [b"create", b"--bundle", os.fsencode(lab.bundle), b"\xff\xc3", b"", b"a b\n"]
    env = {os.fsencode(k): os.fsencode(v) for k, v in lab.env.items()}

    answer = ask([tmp_path / PROGRAM, *args], {**env, b"ODD": b"\xfe\xed"}, lab.home)

    assert answer.stderr == b""
    assert answer.words == [os.fsencode(lab.home / "bin/runc"), *args, b"\xfe\xed"]


def test_each_program_is_served_under_its_name(lab: Lab, tmp_path: Path) -> None:
    said = {name: run(lab, [tmp_path / name, "--help"]) for name in launch.PROGRAMS[3:]}

    assert {name: done.returncode for name, done in said.items()} == dict.fromkeys(said, 0)
    assert "create-symlinks" in said["nvidia-cdi-hook"].stdout
    assert "prestart" in said["nvidia-container-runtime-hook"].stdout
    version = run(lab, [tmp_path / PROGRAM, "--version"])
    assert version.stdout.startswith("NVIDIA Container Runtime version")


def test_the_launcher_starts_it_where_it_is_there_and_else_the_interpreter(
    lab: Lab, hot: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    python = script(tmp_path / "python", "echo python; exit 7\n")
    installed = tmp_path / "nvct-hot"
    built = launch.Built(
        python=str(python), packages="/none", cold=sys.executable, hot=str(installed)
    )
    program = compiled(folder, built, name=PROGRAM)
    ask_for_device(lab)

    without = run(lab, [program, "create", "--bundle", lab.bundle, "x"])
    shutil.copy(hot, installed)
    create(lab, program)
    installed.write_bytes(hot.read_bytes()[: -launch.DIGEST_SIZE] + b"of other sources")
    older = run(lab, [program, "create", "--bundle", lab.bundle, "x"])
    installed.write_bytes(b"\x7fELF of another machine" + launch.hot_digest().encode())
    broken = run(lab, [program, "create", "--bundle", lab.bundle, "x"])

    assert (older.returncode, older.stdout) == (7, "python\n")
    assert (without.returncode, without.stdout) == (7, "python\n")
    assert (broken.returncode, broken.stdout) == (7, "python\n")
    assert "GPU=0" in json.dumps(lab.document()["process"]["env"])


@pytest.mark.parametrize("args", [[], ["--cold"], ["--nonsense", "x", "y"], ["--cold", "x"]])
def test_started_by_hand_it_says_who_starts_it(hot: Path, args: list[str]) -> None:
    said = captured([hot, *args])

    assert said.returncode == 1
    assert said.stderr.startswith("nvct-hot: the launchers start it")


@pytest.mark.parametrize("depth", [300, 9000, 100_000])
def test_deep_json_on_a_small_stack_is_a_sentence_and_no_signal(
    lab: Lab, tmp_path: Path, depth: int
) -> None:
    text = '{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"x":' + '{"x":[' * depth
    lab.config_json.write_text(text)

    said = captured(
        [tmp_path / PROGRAM, "create", "--bundle", lab.bundle, "x"], env=lab.env, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (256 << 10, 256 << 10)),
    )  # fmt: skip

    assert said.returncode == 1
    assert "config.json is not JSON: it is nested too deeply" in said.stderr


def test_its_stack_is_not_executable_and_its_functions_are_protected(hot: Path) -> None:
    words: list[str | Path] = ["readelf", "--program-headers", "--wide", hot]
    said = captured(words, check=True).stdout

    assert re.search(r"GNU_STACK.* RW ", said)
    assert launch.is_static(hot.read_bytes())
    flags = (REPOSITORY / "packaging/static/build.sh").read_text()
    compiled = [f for f in launch.FLAGS if f.startswith(("-f", "-D", "-U", "-O")) and f != "-fPIE"]
    assert [flag for flag in compiled if flag not in flags] == []
