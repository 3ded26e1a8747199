# SPDX-License-Identifier: Apache-2.0
"""Settings and options of `config-manager`: names and variables of NVIDIA's, 0.20."""

from __future__ import annotations

import signal
from dataclasses import dataclass, fields

from nvct.agent.option_table import Option, Table
from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMED, SINGLE, EMPTY = "named", "single", "empty"
STRATEGIES = (NAMED, SINGLE, EMPTY)
"""Fallbacks if neither label nor default names a file: the file `default`, the only file, an empty
configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings; the names are those of the options.

    Attributes:
        source: the folder with the config files.
        target: the file that programs read.
        default: the file of a node without the label, "" for none.
        fallbacks: of STRATEGIES, tried in order.
        signal: its number.
        process: the name of the program that gets the signal.
    """

    oneshot: bool = False
    kubeconfig: str = ""
    node_name: str = ""
    node_label: str = "nvidia.com/device-plugin.config"
    source: str = "/available-configs"
    target: str = "/config/config.yaml"
    default: str = ""
    fallbacks: tuple[str, ...] = ()
    send_signal: bool = True
    signal: int = int(signal.SIGHUP)
    process: str = "nvidia-device-plugin"


OPTIONS = (
    Option(
        flags=("oneshot",), env=("ONESHOT",), field="oneshot", kind="switch",
        help="Write the file once, and end",
    ),
    Option(
        flags=("kubeconfig",), env=("KUBECONFIG",), field="kubeconfig",
        help="A kubeconfig file; default: the pod's service account",
    ),
    Option(
        flags=("node-name",), env=("NODE_NAME",), field="node_name",
        help="The name of this node; default: the host's name",
    ),
    Option(
        flags=("node-label",), env=("NODE_LABEL",), field="node_label",
        help="The label of the node that names its config file",
    ),
    Option(
        flags=("config-file-srcdir",), env=("CONFIG_FILE_SRCDIR",), field="source",
        help="The folder with the config files",
    ),
    Option(
        flags=("config-file-dst",), env=("CONFIG_FILE_DST",), field="target",
        help="The file that programs read",
    ),
    Option(
        flags=("default-config",), env=("DEFAULT_CONFIG",), field="default",
        help="The config file of a node without the label",
    ),
    Option(
        flags=("fallback-strategies",), env=("FALLBACK_STRATEGIES",), field="fallbacks",
        kind="words", choices=(*STRATEGIES, ""),
        help="The fallbacks if neither label nor default names a file",
    ),
    Option(
        flags=("send-signal",), env=("SEND_SIGNAL",), field="send_signal", kind="switch",
        help="Signal the program after a change",
    ),
    Option(
        flags=("signal",), env=("SIGNAL",), field="signal", kind="numbers",
        help="The number of the signal",
    ),
    Option(
        flags=("process-to-signal",), env=("PROCESS_TO_SIGNAL",), field="process",
        help="The name of the program to signal",
    ),
)  # fmt: skip
TABLE = Table(
    program="config-manager",
    summary="Gives this node's programs the config file that the Node's label names.",
    options=OPTIONS,
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Return the settings; the command line takes precedence over the environment.

    Raises:
        UsageError: a value is malformed.
    """
    values = {**TABLE.from_environment(env), **TABLE.from_command_line(words)}
    known = TABLE.fields(values)
    numbers = known.get("signal")
    if numbers is not None:
        if len(numbers) != 1 or numbers[0] not in signal.valid_signals():
            raise UsageError("the signal must be one number", hint="--signal=1")
        known["signal"] = numbers[0]
    return Settings(**known)


def help_text() -> str:
    """Return the text of --help."""
    return TABLE.help_text({field.name: field.default for field in fields(Settings)})
