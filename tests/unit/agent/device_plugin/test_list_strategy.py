# SPDX-License-Identifier: Apache-2.0
"""The device list strategy that auto stands for."""

from __future__ import annotations

import pytest

from nvct.agent.device_plugin.list_strategy import Engine, choose, nobody


@pytest.mark.parametrize(
    ("names", "annotations", "strategy"),
    [
        (True, True, "cdi-cri"),
        (True, False, "cdi-cri"),
        (False, True, "cdi-annotations"),
        (False, False, "envvar"),
    ],
)
def test_auto_is_the_one_best_way_of_the_engine(
    strategy: str, *, names: bool, annotations: bool
) -> None:
    engine = Engine(takes_names=names, takes_annotations=annotations, evidence="containerd 1.7")

    choice = choose(("auto",), lambda: engine)

    assert choice.strategies == (strategy,)
    assert "containerd 1.7" in choice.reason


def test_if_nobody_can_ask_the_engine_it_is_the_variable() -> None:
    choice = choose(("auto",), nobody)

    assert choice.strategies == ("envvar",)
    assert choice.reason == "auto: the container engine cannot be asked"


def test_other_strategies_stay_and_nobody_is_asked() -> None:
    def fail() -> Engine | None:
        pytest.fail("it asks")

    assert choose(("envvar", "cdi-cri"), fail).strategies == ("envvar", "cdi-cri")
