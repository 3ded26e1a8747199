# SPDX-License-Identifier: Apache-2.0
"""Device requests in a container's annotations, under the configured prefixes (cdi.k8s.io/).

Hot; loaded only for containers with annotations. The modes auto and cdi read them; mode auto
accepts only CDI names. If one is not a CDI name, the incumbent (v1.20) drops all of them and reads
the environment, where "all" of an image could replace a misspelt device. It is an error here, as
in the parser of the CDI library.
"""

from __future__ import annotations

from nvct.container.request.model import BY_ANNOTATION
from nvct.container.request.visible_devices import shown, split
from nvct.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.config.model import Config


def requested(
    annotations: Mapping[str, object], config: Config, notes: list[str]
) -> tuple[str, list[str]] | None:
    """Return source and words of a request, None without one.

    Raises RequestError for too many words and, in mode auto, for one that is not a CDI name.
    """
    prefixes = tuple(config.annotation_prefixes)
    keys = sorted(key for key in annotations if key.startswith(prefixes))
    if not keys:
        return None
    if config.mode not in {"auto", "cdi"}:
        notes.append(f"annotation {keys[0]} is ignored: mode {config.mode} reads no annotations")
        return None
    devices: list[str] = []
    sources: list[str] = []
    for key in keys:
        value = annotations[key]
        if not isinstance(value, str):
            continue
        source = f"{BY_ANNOTATION}{key}"
        words = split(value, source)
        if config.mode == "auto":
            _check_qualified(words, source)
        if words:
            sources.append(key)
            devices += words
    if not devices:
        return None
    return f"{BY_ANNOTATION}{', '.join(sources)}", devices


def _check_qualified(words: list[str], source: str) -> None:
    for word in words:
        if "=" not in word:
            raise RequestError(
                f"{source} asks for {shown(word)}, which is not a CDI name",
                hint="write VENDOR/CLASS=DEVICE, as in nvidia.com/gpu=0",
            )
