# SPDX-License-Identifier: Apache-2.0
"""The device plugin's settings from command line, environment and config file."""

from __future__ import annotations

from nvct.agent import config_file
from nvct.agent.device_plugin import options
from nvct.errors import DocumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.agent.device_plugin.settings import Settings


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and warnings.

    Raises:
        UsageError, DocumentError: a value is malformed.
    """
    document = config_file.resolve(options.TABLE, words, env)
    sharing = document.sharing
    if sharing is not None and sharing.strategy == config_file.MPS:
        raise DocumentError(
            "sharing.mps is not available: there is no MPS control daemon yet",
            hint="use sharing.timeSlicing",
        )
    more = {
        "gpu_names": document.gpu_names,
        "mig_names": document.mig_names,
        "replicas": sharing.replicas if sharing else (),
        "one_each": bool(sharing and sharing.one_each),
    }
    return options.settings_of(document.values, more), document.warnings
