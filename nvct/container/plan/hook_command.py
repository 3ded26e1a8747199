# SPDX-License-Identifier: Apache-2.0
"""Work in a container's root as the command line of `nvidia-cdi-hook apply`.

Hot; loaded only where a hook is written: into config.json here, into CDI specs by
`nvct.spec.hooks`. The hook reads the options back in `nvct.container.cdi_hook.options`.
"""

from __future__ import annotations

from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Hook, Work

POINT = "createContainer"
SEPARATOR = "::"
"""Between the two halves of --link."""


def options(work: Work) -> list[str]:
    """Return the options behind `apply`."""
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


def text(hook: Hook) -> str:
    """Return the hook's entry in config.json."""
    program = hook["program"]
    args = [*program["args"], *options(hook["work"])]
    return jsontext.dumps({"path": program["path"], "args": args, "env": program["env"]})
