# SPDX-License-Identifier: Apache-2.0
"""Command lines of hooks: writes those of `apply`, for work in a root; reads those of all hooks.

Hot. `nvct.cdi.make.hooks` writes them into CDI specs. The syntax is the incumbent's: flags are
`--name value` or `--name=value`, with one or two dashes; switches accept `=true` and `=false`. A
list is a repeated flag; values are not split at commas, which paths may contain.
"""

from __future__ import annotations

from nvct.errors import UsageError
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from nvct.container.plan.model import Compat, Hook, View, Work

    Kinds: TypeAlias = dict[str, str]

POINT = "createContainer"
SEPARATOR = "::"  # Separates target and path in --link and --view-file


def flags_of_work(work: Work) -> list[str]:
    """Return the options of `apply`."""
    words: list[str] = []
    for target, path in work["links"]:
        words += ["--link", f"{target}{SEPARATOR}{path}"]
    compat = work["compat"]
    for option, value in (
        ("host-driver-version", compat.get("driver")),
        ("host-cuda-version", compat.get("cuda")),
        ("cuda-compat-container-root", compat.get("folder")),
    ):
        if value:
            words.append(f"--{option}={value}")
    for folder in work["folders"]:
        words += ["--folder", folder]
    if work["params"]:
        words.append("--mask-params")
    if work["profile"]:
        words.append("--application-profile")
    return words


def flags_of_view(view: View) -> list[str]:
    """Return the options of `apply` for a farm view."""
    words = [f"--view={view['mount_point']}"]
    if view["folder"]:
        words.append(f"--view-folder={view['folder']}")
    words += [f"--view-library={path}" for path in view["libraries"]]
    words += [f"--view-link={path}" for path in view["links"]]
    words += [f"--view-file={path}{SEPARATOR}{where}" for path, where in view["files"]]
    return words


def text(hook: Hook) -> str:
    """Return the hook's entry in config.json."""
    program = hook["program"]
    args = [*program["args"], *flags_of_work(hook["work"])]
    return jsontext.dumps({"path": program["path"], "args": args, "env": program["env"]})


LIST, TEXT, SWITCH = "list", "text", "switch"


class Options:
    """The flags of one command line, and the words after them."""

    __slots__ = ("given", "rest")

    def __init__(self) -> None:
        self.given: dict[str, list[str]] = {}
        self.rest: list[str] = []

    def values(self, name: str) -> list[str]:
        """Return the distinct values of a repeated flag, in order."""
        return list(dict.fromkeys(self.given.get(name, [])))

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a flag, or the default if it is missing."""
        return self.given.get(name, [default])[-1]

    def is_set(self, name: str) -> bool:
        """Report whether a switch is on."""
        return self.text(name) == "true"

    def put(self, kind: str, name: str, value: str) -> None:
        """Add the value of a flag; UsageError for a switch that is neither true nor false."""
        if kind == SWITCH:
            value = "true" if _is_true(name, value) else "false"
        self.given.setdefault(name, []).append(value)


def _is_true(name: str, value: str) -> bool:
    if value == "true":
        return True
    from nvct.paths import FALSE, TRUE  # a switch rarely has another value

    if value not in TRUE + FALSE:
        raise UsageError(f"--{name} is {value!r}, not true or false")
    return value in TRUE


def read(words: list[str], kinds: Kinds, *, surplus: bool = False) -> Options:
    """Parse flags up to the first other word; with `surplus`, to the end. Raises UsageError."""
    options = Options()
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            index += 1
            break
        if not word.startswith("-") or word == "-":
            if not surplus:
                break
            options.rest.append(word)
            index += 1
            continue
        name, equals, value = word.lstrip("-").partition("=")
        kind = kinds.get(name)
        if kind is None:
            raise UsageError(f"unknown flag {word}")
        if not equals:
            if kind == SWITCH:
                value = "true"
            else:
                index += 1
                if index == len(words):
                    raise UsageError(f"flag {word} needs a value")
                value = words[index]
        options.put(kind, name, value)
        index += 1
    options.rest += words[index:]
    return options


def work(options: Options) -> Work:
    """Return the work in the container's root that flags describe. Raises UsageError."""
    compat: Compat = {}
    if options.text("host-driver-version") or options.text("host-cuda-version"):
        compat = {
            "driver": options.text("host-driver-version"),
            "cuda": options.text("host-cuda-version"),
            "folder": options.text("cuda-compat-container-root"),
        }
    return {
        "links": [_pair("link", text) for text in options.values("link")],
        "folders": options.values("folder"),
        "compat": compat,
        "params": options.is_set("mask-params"),
        "profile": options.is_set("application-profile"),
    }


def view(options: Options) -> View | None:
    """Return the view that flags describe, or None; UsageError if a path leads out of it."""
    mount_point = options.text("view")
    if not mount_point:
        return None
    if not mount_point.startswith("/"):
        raise UsageError(f"--view is {mount_point!r}, not an absolute path")
    files = [_pair("view-file", text) for text in options.values("view-file")]
    libraries, links = options.values("view-library"), options.values("view-link")
    for path in (*libraries, *links, *(path for path, _ in files)):
        if path.startswith("/") or ".." in path.split("/"):
            raise UsageError(f"{path!r} leads out of the view")
    return {
        "mount_point": mount_point.rstrip("/"),
        "libraries": libraries,
        "links": links,
        "files": files,
        "folder": options.text("view-folder"),
    }


def _pair(flag: str, text: str) -> list[str]:
    """Return [target, path] of a flag's value."""
    parts = text.split(SEPARATOR)
    if len(parts) != 2 or not parts[0] or not parts[1].strip("/"):
        want = "TARGET::LINK" if flag == "link" else "FILE::PATH"
        raise UsageError(f"--{flag} {text!r} is not {want}")
    return parts
