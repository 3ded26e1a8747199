# SPDX-License-Identifier: Apache-2.0
"""Random plans on a simulated node: the result is the wish, or nothing changed.

`make ci` makes 100 of them, `make ci-full` (NVCT_TESTS_PROFILE=full) 10,000 in parts, which its
processes share.
"""

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nvct.errors import ContainerNotPossibleError, HostError, NvmlError, UsageError
from nvct.mig import config, plan
from nvct.mig.apply import Machine, apply
from nvct.mig.journal import Journal
from nvct.mig.layout import devices, layout_of
from nvct_sim import tree
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.unit.mig.conftest import library_of, roots_of
from tests.unit.mig.test_apply import FailingSession, layouts, refuse

IS_FULL = os.environ.get("NVCT_TESTS_PROFILE") == "full"
PARTS, PLANS = (8, 1250) if IS_FULL else (1, 100)
NEVER = 1 << 30
NAMES = (
    "1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1c.2g.20gb",
    "1c.3g.40gb", "2c.3g.40gb", "2c.4g.40gb", "1c.7g.80gb", "3c.7g.80gb", "1g.5gb",
)  # fmt: skip
GPUS = range(6)
"""T4, two A100, two H100; there is no sixth."""
wishes = st.one_of(
    st.none(), st.lists(st.sampled_from(NAMES), max_size=7).map(lambda names: dict(Counter(names)))
)
devices_of = st.one_of(st.none(), st.lists(st.sampled_from(GPUS), min_size=1, max_size=3))


@st.composite
def specs(draw: st.DrawFn) -> config.Spec:
    wish, indices = draw(wishes), draw(devices_of)
    return config.Spec(
        devices=None if indices is None else tuple(indices),
        enabled=wish is not None,
        wish=wish or {},
    )


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    before = os.environ.get("NVCT_SIM_DEV")
    try:
        with in_memory(tmp_path_factory.mktemp("nodes")) as folder:
            node = tree.create("mixed", "mixed", folder, native_cache=CACHE)
            os.environ["NVCT_SIM_DEV"] = str(node.dev)
            session = FailingSession(library_of(node), NEVER, refuse)
            yield Machine(
                session=session, roots=roots_of(node), journal=Journal(f"{folder}/run"),
                reset=lambda _: None,
            )  # fmt: skip
            session.close()
            tree.destroy(node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)
    finally:
        os.environ.pop("NVCT_SIM_DEV", None)
        if before is not None:
            os.environ["NVCT_SIM_DEV"] = before


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(7200)
@given(
    wanted=st.lists(specs(), min_size=1, max_size=3),
    failure=st.one_of(st.just(NEVER), st.integers(1, 60)),
)
@settings(max_examples=PLANS, deadline=None, suppress_health_check=[*HealthCheck], database=None)
def test_the_result_is_the_wish_or_nothing_changed(
    machine: Machine, part: int, wanted: list[config.Spec], failure: int
) -> None:
    del part
    before = layouts(machine)
    session = machine.session
    assert isinstance(session, FailingSession)
    session.left = failure
    try:
        apply(machine, partial(plan.make, specs=wanted))
    except UsageError:
        event("refused")
        assert layouts(machine) == before
    except (HostError, NvmlError):
        event("brought back")
        assert layouts(machine) == before
    else:
        event("applied")
        state = machine.session.mig()
        for gpu, spec in plan.assigned(state, wanted):
            assert gpu.enabled == (spec.enabled and gpu.capable)
            if gpu.capable:
                assert devices(gpu, layout_of(gpu)) == Counter(spec.wish)
        untouched = {gpu.uuid for gpu in state.gpus} - {
            gpu.uuid for gpu, _ in plan.assigned(state, wanted)
        }
        after = {gpu["UUID"]: gpu for gpu in layouts(machine)["MigState"]["Devices"]}
        for gpu in before["MigState"]["Devices"]:
            if gpu["UUID"] in untouched:
                assert after[gpu["UUID"]] == gpu
    finally:
        session.left = NEVER
    assert not os.path.exists(machine.journal.path)
