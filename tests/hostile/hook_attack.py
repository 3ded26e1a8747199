# SPDX-License-Identifier: Apache-2.0
"""Starts hooks in real containers with an image's environment: hook_attack.py WORK PROGRAM...

A spec without `env` is what older toolkits wrote, and an engine that reads CDI itself adds its hooks
to config.json as they are; the OCI runtime then starts them with the container's environment. Newer
runc (1.3) starts them with none, so here the hook is given the container's environment. Each
variable of the environment leaves a file of its own when a loader, a shell or an interpreter
follows it. Standard library only: it also runs where a package or a bundle is installed.

WORK has the bundle `plain` and the libraries that `build` makes. A PROGRAM is nvidia-cdi-hook,
nvidia-ctk, nvct or the prestart hook, by its path. Prints a line for each container; ends with
status 1 when something followed a variable, or a hook did not do its work.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
unsigned la_version(unsigned v) { return v; }
__attribute__((constructor)) static void evil(void) { close(open("%s", O_CREAT | O_WRONLY, 0644)); }
"""
LINK = ["create-symlinks", "--link", "nvct::/hook-was-here"]
COMMANDS = {
    "nvidia-cdi-hook": [
        ["nvidia-cdi-hook", *LINK], ["nvidia-cdi-hook", "--debug", *LINK], ["any", *LINK],
        ["nvidia-container-runtime", *LINK],
    ],
    "nvidia-ctk": [
        ["nvidia-ctk", "hook", *LINK], ["nvidia-ctk", "--debug", "hook", *LINK],
        ["nvidia-ctk", "--quiet", "--config=/x", "hook", *LINK], ["any", "hook", *LINK],
    ],
    "nvct": [["nvct", "hook", *LINK]],
    "nvidia-container-runtime-hook": [["nvidia-container-runtime-hook", "prestart"]],
    "nvidia-container-toolkit": [["nvidia-container-toolkit", "prestart"], ["any", "prestart"]],
}  # fmt: skip
ALONE = ("GLIBC_TUNABLES", "LD_LIBRARY_PATH", "PYTHONHOME")
"""A program that followed one of them might end before it followed another variable."""
CONTROL = """
#include <unistd.h>
__attribute__((force_align_arg_pointer)) void _start(void) { execlp("env", "env", "x", (char *)0); _exit(0); }
"""
"""A dynamic program that follows variables: else the attack itself would be a dud."""


def build(work: Path) -> None:
    """Compile the libraries, for hosts that have no compiler."""
    source = work / "evil.c"
    for name in ("preload", "audit", "libz.so.1", "libm.so.6", "libexpat.so.1"):
        kind = name if name in ("preload", "audit") else "library-path"
        path = work / ("evil" if kind == "library-path" else ".") / f"{name.removesuffix('.so')}"
        path.parent.mkdir(exist_ok=True)
        source.write_text(LIBRARY % (work / "markers" / kind), encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    source.write_text(CONTROL, encoding="utf-8")  # for older C libraries too: no start file
    subprocess.run(["cc", "-nostartfiles", "-o", work / "control", source], check=True)


def variables(work: Path) -> dict[str, list[str]]:
    """Return the environment of each attack: all variables at once, and each of ALONE; write what they name."""
    evil, markers = work / "evil", work / "markers"
    markers.mkdir(exist_ok=True)
    touch = f': > {markers}/shell\n[ "$1" != true ] || exit 0\n'
    (evil / "profile").write_text(touch, encoding="utf-8")
    for name in ("env", "python3", "ldconfig", "modprobe", "true", "sh"):
        (evil / name).write_text(f"#!/bin/sh\n: > {markers}/path\nexit 0\n", encoding="utf-8")
        (evil / name).chmod(0o755)
    for name in ("nvct", "sitecustomize", "posix", "_json", "encodings"):
        text = f"open({str(markers / 'python')!r}, 'w')\n"
        (evil / f"{name}.py").write_text(text, encoding="utf-8")
    each = {
        "LD_PRELOAD": [f"LD_PRELOAD={work}/preload"],
        "LD_AUDIT": [f"LD_AUDIT={work}/audit"],
        "LD_DEBUG_OUTPUT": ["LD_DEBUG=all", f"LD_DEBUG_OUTPUT={markers}/debug"],
        "LD_LIBRARY_PATH": [f"LD_LIBRARY_PATH={evil}"],
        "GLIBC_TUNABLES": [f"GLIBC_TUNABLES=glibc.rtld.optional_static_tls={'9' * 2000}"],
        "PYTHONPATH": [f"PYTHONPATH={evil}"],
        "PYTHONHOME": [f"PYTHONHOME={evil}"],
        "PYTHONSTARTUP": [f"PYTHONSTARTUP={evil}/nvct.py", "PYTHONINSPECT=1"],
        "BASH_ENV": [f"BASH_ENV={evil}/profile"],
        "ENV": [f"ENV={evil}/profile"],
        "PATH": [f"PATH={evil}"],
        "NVIDIA_CTK_CONFIG_FILE_PATH": [
            f"NVIDIA_CTK_CONFIG_FILE_PATH={evil}/c.toml", f"NVCT_RUN_DIR={evil}/run",
            f"XDG_CONFIG_HOME={evil}", f"XDG_RUNTIME_DIR={evil}",
        ],
    }  # fmt: skip
    alone = {name: each.pop(name) for name in ALONE}
    return {" ".join(each): [entry for env in each.values() for entry in env], **alone}


class Attack:
    """A container that is created again and again, each time with another hook or variable."""

    def __init__(self, work: Path) -> None:
        """Take the bundle `plain` for it."""
        self.work = work
        self.config = work / "plain/config.json"
        self.before = self.config.read_bytes()
        self.marker = work / "plain/rootfs/hook-was-here"
        self.number = 0

    def followed(self, path: str, args: list[str], env: list[str]) -> tuple[list[str], bool, str]:
        """Return the files that something left, whether the hook worked, and what was said."""
        document = json.loads(self.before)
        document["process"]["env"] = [*document["process"]["env"], *env]
        document["process"]["args"] = ["/bin/sh", "-c", "exit 0"]
        hook = {"path": path, "args": args, "env": document["process"]["env"]}
        document["hooks"] = {"createContainer": [hook]}
        self.config.write_text(json.dumps(document), encoding="utf-8")
        self.number += 1
        words = ["runc", "--root", str(self.work / "runc-attack"), "run", "--bundle"]
        result = subprocess.run(
            [*words, str(self.work / "plain"), f"attack{self.number}"], check=False,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        self.config.write_bytes(self.before)
        markers = sorted(os.listdir(self.work / "markers"))
        for name in markers:
            (self.work / "markers" / name).unlink()
        works = LINK[0] in args  # a prestart hook has nothing to do there, or fails
        worked = not works or (result.returncode == 0 and self.marker.is_symlink())
        self.marker.unlink(missing_ok=True)
        message = "" if result.returncode == 0 else result.stderr.strip()[-300:]
        return markers, worked, message


def main(work: Path, programs: list[str]) -> int:
    """Run all of them; return the exit status."""
    attack = Attack(work)
    wrong = 0
    attacks = variables(work)
    started: set[str] = set()
    message = ""
    for env in attacks.values():
        markers, _, message = attack.followed(str(work / "control"), ["control"], env)
        started.update(markers)
    print("controls left:", *sorted(started), message)
    if not {"audit", "path", "preload"} <= {name.partition(".")[0] for name in started}:
        print("the attack is a dud")
        return 1
    for path in programs:
        for args in COMMANDS[os.path.basename(path)]:
            for name, env in attacks.items():
                markers, worked, message = attack.followed(path, args, env)
                if markers or not worked:
                    wrong += 1
                    print("WRONG", name, path, args, markers, message)
    print(f"{attack.number} containers, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
