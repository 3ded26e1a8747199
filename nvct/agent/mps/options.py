# SPDX-License-Identifier: Apache-2.0
"""The options of `mps-control-daemon`: names and precedence of NVIDIA's, 0.20."""

from __future__ import annotations

from nvct.agent import config_file
from nvct.agent.device_plugin.settings import MIG_STRATEGIES, Settings
from nvct.agent.option_table import Option, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPTIONS = (
    Option(
        flags=("config-file",), env=("CONFIG_FILE",), field="", help="A config file, v1",
    ),
    Option(
        flags=("mig-strategy",), env=("MIG_STRATEGY",), field="mig_strategy",
        key="flags.migStrategy", choices=MIG_STRATEGIES, help="How MIG devices are offered",
    ),
)  # fmt: skip
TABLE = Table(
    program="mps-control-daemon",
    summary="Keeps the MPS control daemons of this node's shared GPUs.\n\n"
    "mps-control-daemon mount-shm mounts their shared memory at /mps/shm.",
    options=OPTIONS,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return those settings of the device plugin that matter here, and warnings.

    Raises:
        UsageError, DocumentError: a value is malformed.
    """
    document = config_file.resolve(TABLE, words, env)
    sharing = document.sharing
    settings = Settings(
        **TABLE.fields(document.values),
        gpu_names=document.gpu_names,
        mig_names=document.mig_names,
        excluded=document.excluded,
        replicas=sharing.replicas if sharing else (),
        mps=bool(sharing and sharing.strategy == config_file.MPS),
    )
    return settings, document.warnings


def help_text() -> str:
    """Return the text of --help."""
    return TABLE.help_text({"mig_strategy": Settings().mig_strategy})
