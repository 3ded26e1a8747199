# SPDX-License-Identifier: Apache-2.0
"""Device requests in a container's annotations, under the configured prefixes (cdi.k8s.io/).

Hot; loaded only where a container has annotations. They count in the modes auto and cdi, and in
auto they have to be CDI names. The incumbent (v1.20) drops all of them if one is not, and goes on
to the environment; there an image's "all" could take the place of a misspelt device, so it is an
error here, as in the CDI library's own parser.
"""

from __future__ import annotations

from nvct.container.request.visible_devices import shown, split
from nvct.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.config.model import Config


def find(
    annotations: Mapping[str, object], config: Config, notes: list[str]
) -> tuple[str, list[str]] | None:
    """Return what brought a request and its words, or None if no annotation asks for a device.

    Raises:
        RequestError: mode auto, and a word is no CDI name.
    """
    prefixes = tuple(config.annotation_prefixes)
    keys = sorted(key for key in annotations if key.startswith(prefixes))
    if not keys:
        return None
    if config.mode not in {"auto", "cdi"}:
        notes.append(f"annotation {keys[0]} is ignored: mode {config.mode} reads no annotations")
        return None
    words: list[str] = []
    sources: list[str] = []
    for key in keys:
        value = annotations[key]
        if not isinstance(value, str):
            continue
        source = f"annotation {key}"
        found = split(value, source)
        if config.mode == "auto":
            _check_qualified(found, source)
        if found:
            sources.append(key)
            words += found
    if not words:
        return None
    return f"annotation {', '.join(sources)}", words


def _check_qualified(words: list[str], source: str) -> None:
    for word in words:
        if "=" not in word:
            raise RequestError(
                f"{source} asks for {shown(word)}, which is no CDI name",
                hint="write VENDOR/CLASS=DEVICE, as in nvidia.com/gpu=0",
            )
