# SPDX-License-Identifier: Apache-2.0
"""The command line of `nvidia-cdi-hook apply` for work in a container's root.

Hot; loaded only if config.json gets a hook; `nvct.cdi.make.hooks` writes it into CDI specs. The
hook parses its options in `nvct.container.cdi_hook.options`.
"""

from __future__ import annotations

from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Hook, View, Work

POINT = "createContainer"
SEPARATOR = "::"
"""Separates target and path in --link and --view-file."""


def options(work: Work) -> list[str]:
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


def view_options(view: View) -> list[str]:
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
    args = [*program["args"], *options(hook["work"])]
    return jsontext.dumps({"path": program["path"], "args": args, "env": program["env"]})
