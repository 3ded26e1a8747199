# SPDX-License-Identifier: Apache-2.0
"""A specification without hooks, in images whose own programs need their cache."""

import shutil

import pytest

from tests.callers import no_hooks
from tests.integration.conftest import Part, SimulatedNode

PARTS = {
    "Debian": no_hooks.a_debian_image,
    "Red Hat": no_hooks.a_red_hat_image,
    "musl": pytest.param(
        no_hooks.a_musl_image,
        marks=pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl-gcc here"),
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_an_image_keeps_its_programs_and_finds_the_driver(
    part: Part, simulated: SimulatedNode
) -> None:
    simulated.run(part)
