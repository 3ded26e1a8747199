# SPDX-License-Identifier: Apache-2.0
"""The device plugin's settings from command line, environment and config file."""

from __future__ import annotations

from nvct.agent import config_file
from nvct.agent.device_plugin import options
from nvct.errors import UsageError

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
    more = {
        "gpu_names": document.gpu_names,
        "mig_names": document.mig_names,
        "excluded": document.excluded,
        "replicas": sharing.replicas if sharing else (),
        "one_each": bool(sharing and sharing.one_each),
        "mps": bool(sharing and sharing.strategy == config_file.MPS),
        "config_content": document.content,
    }
    settings = options.settings_of(document.values, more)
    if settings.mps:
        _check_mps(settings)
    return settings, document.warnings


def _check_mps(settings: Settings) -> None:
    """Refuse settings that do not go with MPS; the sentences are the incumbent's."""
    if settings.mig_strategy == "mixed":
        raise UsageError(
            "using --mig-strategy=mixed is not supported with MPS",
            hint="share MIG devices by sharing.timeSlicing",
        )
    if not settings.mps_root:
        raise UsageError(
            "using MPS requires --mps-root to be specified",
            hint="set MPS_ROOT=/run/nvidia/mps, a folder of the host",
        )
