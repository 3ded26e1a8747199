# SPDX-License-Identifier: Apache-2.0
"""nvidia-container-cli on a simulated node: NVML, real containers, and roots without a runtime."""

from __future__ import annotations

import pytest

from tests.integration import container_cli
from tests.integration.conftest import SimulatedNode

pytestmark = pytest.mark.engine


def test_info_is_what_nvidia_smi_prints(simulated: SimulatedNode) -> None:
    simulated.run(container_cli.info)


def test_list_names_what_is_there(simulated: SimulatedNode) -> None:
    simulated.run(container_cli.listed)


def test_configure_gives_a_container_of_runc_its_gpus(simulated: SimulatedNode) -> None:
    simulated.run(container_cli.by_pid)


def test_configure_works_on_a_root_where_it_runs(simulated: SimulatedNode) -> None:
    simulated.run(container_cli.standalone)


def test_configure_changes_no_other_namespace(simulated: SimulatedNode) -> None:
    simulated.run(container_cli.shared)
