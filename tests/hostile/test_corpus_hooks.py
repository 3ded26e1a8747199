# SPDX-License-Identifier: Apache-2.0
"""Every hostile image by the hooks that engines call themselves, in real containers."""

from collections.abc import Callable

import pytest

from tests.hostile import corpus, verdicts
from tests.integration.conftest import SimulatedNode

WAYS = {"cdi": corpus.by_cdi, "spec": corpus.by_spec, "prestart": corpus.by_prestart}


@pytest.mark.engine
@pytest.mark.parametrize("program_kind", WAYS)
def test_hostile_images_get_nothing_out_of_the_host_by_a_hook(
    simulated: SimulatedNode, golden: Callable[[str, str], None], program_kind: str
) -> None:
    verdicts.check(simulated, golden, WAYS[program_kind])
