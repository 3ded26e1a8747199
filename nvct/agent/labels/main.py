# SPDX-License-Identifier: Apache-2.0
"""Program `gpu-feature-discovery`: the agent's task alone, with the options of NVIDIA's."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.discovery import Discovery
    from nvct.agent.labels.outputs import Output
    from nvct.agent.labels.settings import Settings
    from nvct.agent.labels.task import NodeLabels
    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient

PROGRAM = "gpu-feature-discovery"
INCUMBENT = "0.20.0"
"""The version of NVIDIA's program whose options this one takes."""


def main() -> NoReturn:
    """Run the program."""
    from nvct.agent import program
    from nvct.agent.labels import options

    program.main(
        program.Program(
            name=PROGRAM,
            title="GPU Feature Discovery",
            version=INCUMBENT,
            help_text=options.help_text,
            check=options.resolve,
            make=make,
        )
    )


def make(
    words: Sequence[str],
    env: Mapping[str, str],
    client: NvmlClient,
    journal: Log,
    *,
    in_agent: bool = False,
) -> NodeLabels:
    """Return the task, with the settings of a command line and environment.

    Raises:
        UsageError, DocumentError: a setting is wrong.
    """
    from nvct.agent.discovery import of_this_machine
    from nvct.agent.driver_root import DEV_ROOT_ENV
    from nvct.agent.labels import options, outputs
    from nvct.agent.labels.task import NodeLabels

    def load() -> Settings:
        return journal.warned(options.resolve(words, env, in_agent=in_agent))

    def discovery(settings: Settings) -> Discovery:
        return of_this_machine(
            client,
            settings.container_driver_root,
            settings.device_discovery_strategy,
            env.get(DEV_ROOT_ENV, ""),
        )

    def output(settings: Settings) -> Output:
        return outputs.of_settings(settings, journal)

    return NodeLabels(load, discovery, output, journal)


if __name__ == "__main__":
    main()
