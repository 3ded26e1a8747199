# SPDX-License-Identifier: Apache-2.0
"""No policy gives a container more than it would get without a policy."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nvct.config.model import Config
from nvct.config.rules import ASKS_FOR, BY, KUBELET, OUTCOMES, parse
from nvct.container.request.conditions import CONDITIONS, matches
from nvct.container.request.model import Request
from nvct.container.request.origin import Origin
from nvct.container.request.resolve import resolve_request
from nvct.errors import NotPermittedError, NvctError
from nvct.oci.bundle import Bundle
from tests.property.test_request import ANNOTATIONS, CAPS, ENV, MOUNTS, VALUE
from tests.support.policies import Plans

KUBERNETES = st.dictionaries(
    st.sampled_from(
        ["io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-namespace",
         "io.kubernetes.cri-o.ContainerType", "io.kubernetes.pod.namespace", "x"]
    ),
    st.sampled_from(["container", "ml", "web", ""]),
)  # fmt: skip
PATTERN = st.sampled_from(["*", "ml", "w*", "nvidia.com/gpu=*", "/a/*", "*b", "container"])
PATTERNS = st.lists(PATTERN, min_size=1, max_size=2)
SOME: dict[str, st.SearchStrategy[Any]] = {
    "by": st.lists(st.sampled_from(BY), min_size=1, max_size=3),
    "asks-for": st.lists(st.sampled_from(ASKS_FOR), min_size=1, max_size=3),
    "devices": PATTERNS,
    "namespaces": PATTERNS,
    "cgroups": PATTERNS,
    "kubernetes": st.booleans(),
    "privileged": st.booleans(),
    "users": st.lists(
        st.sampled_from([0, 1000, "0-9", "100000-199999"]), min_size=1, max_size=2
    ),
    "annotations": st.dictionaries(st.sampled_from(["x", "y"]), PATTERNS, min_size=1),
    "more-gpus-than": st.integers(0, 4),
}  # fmt: skip
RULE = st.fixed_dictionaries(
    {"then": st.sampled_from(OUTCOMES)}, optional={**SOME, "reason": st.just("because")}
)
TABLE = st.fixed_dictionaries(
    {"rules": st.lists(RULE, max_size=4)}, optional={"default": st.sampled_from(OUTCOMES)}
)
LINUX: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "cgroupsPath": st.sampled_from(["/a/b", "/kubepods/x", "a.slice:b:c", "", 1, None]),
        "namespaces": st.sampled_from([[], [{"type": "user"}], None, [1]]),
        "uidMappings": st.sampled_from(
            [[], [{"containerID": 0, "hostID": 100000, "size": 9}], "x", [{}], None]
        ),
    },
)
ENGINE_ENV = st.one_of(ENV, st.builds(lambda v: [f"NVIDIA_VISIBLE_DEVICES={v}"], VALUE))


def fields(request: Request | None) -> object:
    if request is None:
        return None
    extras = {name: getattr(request.extras, name) for name in request.extras.__slots__}
    return request.ids, request.mode, request.capabilities, request.requirements, extras


def outcome(*args: Any, origin: Origin | None = None) -> object:
    """Return what a container gets, or the error that its create fails with."""
    try:
        return fields(resolve_request(*args, origin=origin)[0]), ""
    except NotPermittedError as error:
        return "", "denied" if error.message.startswith("policy rule ") else error.message
    except NvctError as error:
        return "", error.message


@given(TABLE, ENGINE_ENV, MOUNTS, ANNOTATIONS, KUBERNETES, CAPS, LINUX, st.booleans())
def test_a_policy_allows_the_whole_request_or_nothing(  # noqa: PLR0917  all drawn
    table: dict[str, Any],
    env: list[str],
    mounts: list[dict[str, object]],
    annotations: dict[str, str],
    kubernetes: dict[str, str],
    bounding: list[str],
    linux: dict[str, Any],
    knows: bool,
) -> None:
    annotations = {**annotations, **kubernetes}
    document = {"annotations": annotations, "linux": linux}
    origin = Origin(Bundle("x", json.dumps(document)), Plans(3))
    config = Config(accept_volume_mounts=True)
    without = outcome(env, mounts, annotations, bounding, config)
    config = config.replaced(policy=parse(table, "/c")[0])

    result = outcome(env, mounts, annotations, bounding, config, origin=origin if knows else None)

    assert result in (without, (None, ""), ("", "denied"))
    assert without != (None, "") or result == without


def test_every_condition_is_tried() -> None:
    # The record of a kubelet gives what it has: tests/unit/container/request has its own tests.
    assert set(SOME) == set(CONDITIONS) - {KUBELET}


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_matches_as_its_parts_do(pattern: str, text: str) -> None:
    first, star, remainder = pattern.partition("*")
    if star:
        slow = any(
            matches(text[cut:], remainder) for cut in range(len(first), len(text) + 1)
        ) and text.startswith(first)
    else:
        slow = text == pattern

    assert matches(text, pattern) == slow
