# SPDX-License-Identifier: Apache-2.0
"""Program `dcgm-exporter`: the agent's task alone, with the options of NVIDIA's program."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.exporter.pod_metadata import PodMetadata, SliceDevices
    from nvct.agent.exporter.settings import Settings
    from nvct.agent.exporter.task import Exporter
    from nvct.agent.kubernetes.cluster import Cluster
    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient

PROGRAM = "dcgm-exporter"
INCUMBENT = "4.8.2"
"""The version of NVIDIA's program whose options this one takes."""


def main() -> NoReturn:
    """Run the program."""
    from nvct.agent import program
    from nvct.agent.exporter import options

    program.main(
        program.Program(
            name=PROGRAM,
            title="DCGM Exporter",
            version=INCUMBENT,
            help_text=options.help_text,
            check=options.resolve,
            make=make,
        )
    )


def make(
    words: Sequence[str], env: Mapping[str, str], client: NvmlClient, journal: Log
) -> Exporter:
    """Return the task, with the settings of a command line and environment.

    Raises:
        UsageError, DocumentError: a setting or the counter file is wrong.
    """
    from nvct.agent.driver_root import with_driver_roots
    from nvct.agent.exporter import options
    from nvct.agent.exporter.pods import PodDevices
    from nvct.agent.exporter.task import Exporter
    from nvct.host.nvml.library import nvml_library
    from nvct.host.roots import Roots

    def load() -> Settings:
        return journal.warned(options.resolve(words, with_driver_roots(env)))

    def library(settings: Settings) -> str:
        root = settings.container_driver_root
        return nvml_library(Roots(driver_root=root if os.path.isdir(root) else "/"))

    def pods(settings: Settings) -> PodDevices:
        return PodDevices(
            settings.socket, wanted=settings.kubernetes, names=settings.resources,
            old=settings.old_namespace, virtual=settings.virtual_gpus, claims=settings.claims,
            metadata=metadata(settings), slices=slices(settings), journal=journal,
        )  # fmt: skip

    def node() -> str:
        return env.get("NODE_NAME") or os.uname().nodename

    def slices(settings: Settings) -> SliceDevices | None:
        if not settings.claims:
            return None
        from nvct.agent.exporter.pod_metadata import SliceDevices

        return SliceDevices(lambda: _connect(env), node(), journal)

    def metadata(settings: Settings) -> PodMetadata | None:
        if not (settings.pod_labels or settings.pod_uid):
            return None
        from nvct.agent.exporter.pod_metadata import PodMetadata

        return PodMetadata(
            lambda: _connect(env), node(),
            with_labels=settings.pod_labels, with_uid=settings.pod_uid,
            allowed=settings.pod_label_patterns, journal=journal,
        )  # fmt: skip

    return Exporter(load, client, journal, pods, library)


def _connect(env: Mapping[str, str]) -> Cluster:
    from nvct.agent.kubernetes import cluster  # lightkube, 12 MB

    return cluster.connect(env.get("KUBECONFIG", ""), env)


if __name__ == "__main__":
    main()
