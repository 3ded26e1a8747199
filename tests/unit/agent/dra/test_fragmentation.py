# SPDX-License-Identifier: Apache-2.0
"""The simulation that docs/dra.md cites: what a node gives, and what waits."""

from __future__ import annotations

from nvct.agent.dra.devices import Device, Offer, Place
from tests.bench.fragmentation import GPUS, SLICES, Claim, OnDemand, Static, simulate


def mig(profile: str, start: int, slices: range) -> Device:
    return Device(
        name=f"{profile}-{start}", uuid="", gpu="GPU-0", attributes={"profile": profile},
        capacity={}, place=Place(0, start, len(slices), 0), counter_set="gpu",
        counters={f"memory-slice-{n}": 1 for n in slices},
    )  # fmt: skip


OFFER = Offer(
    devices=(
        *(mig("1g.10gb", n, range(n, n + 1)) for n in range(7)),
        mig("3g.40gb", 0, range(4)), mig("3g.40gb", 4, range(4, 8)),
        mig("7g.80gb", 0, range(8)),
    ),
    counters={"gpu": {f"memory-slice-{n}": 1 for n in range(8)}},
)  # fmt: skip


def test_gpus_are_full_when_no_place_is_left_and_come_back() -> None:
    node = OnDemand(OFFER)
    given = [node.take("3g.40gb") for _ in range(2 * GPUS)]
    assert None not in given
    assert node.take("1g.10gb") is None
    for give_back in given:
        assert give_back is not None
        give_back()
    assert node.free == GPUS * SLICES
    assert [node.take("7g.80gb") is None for _ in range(GPUS + 1)] == [False] * GPUS + [True]


def test_a_fixed_layout_gives_the_smallest_device_that_is_large_enough() -> None:
    node = Static([["1g.10gb", "3g.40gb"]])
    assert not node.has("7g.80gb")
    assert node.take("2g.20gb") is not None
    assert node.take("3g.40gb") is None
    assert node.take("1g.10gb") is not None


def test_claims_wait_for_those_before_them_and_smaller_ones_overtake() -> None:
    claims = [
        Claim(0, "7g.80gb", 10), Claim(1, "1g.10gb", 10), Claim(2, "7g.80gb", 10),
        Claim(3, "1g.10gb", 2), Claim(4, "2g.20gb", 1),
    ]  # fmt: skip
    result = simulate(claims, Static([["7g.80gb"], ["1g.10gb"]]))
    # The last two wait for the whole GPU: the only device that is not too small, and the 1g.10gb.
    assert sorted(result.waits) == [0, 0, 8, 8, 16]
    assert result.never == 0
