# SPDX-License-Identifier: Apache-2.0
"""The recorder: messages of the device plugin API, and how answers are written."""

import json

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from tests.peer import api, plugin

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_what_is_written_is_read_as_it_was(content: object) -> None:
    assert json.loads(plugin.written(content)) == content


def test_what_fits_is_on_one_line() -> None:
    long = "x" * plugin.LINE_LENGTH

    assert plugin.written({"b": [1, 2], "a": long}) == f'{{\n  "a": "{long}",\n  "b": [1, 2]\n}}'


@pytest.mark.parametrize(
    ("name", "content", "encoded"),
    [
        ("AllocateRequest", {"container_requests": [{"devices_ids": ["a"]}]}, "0a030a0161"),
        ("ContainerAllocateResponse", {"envs": {"k": "v"}}, "0a060a016b120176"),
        ("ContainerAllocateResponse", {"cdi_devices": [{"name": "n"}]}, "2a030a016e"),
        ("Device", {"ID": "a", "topology": {"nodes": [{"ID": 1}]}}, "0a01611a040a020801"),
        ("RegisterRequest", {"options": {"get_preferred_allocation_available": True}}, "22021001"),
        (
            "ContainerPreferredAllocationRequest",
            {"available_deviceIDs": ["a"], "must_include_deviceIDs": ["b"], "allocation_size": 2},
            "0a01611201621802",
        ),
    ],
)
def test_messages_have_the_field_numbers_of_the_api(
    name: str, content: dict[str, object], encoded: str
) -> None:
    message = json_format.ParseDict(content, api.message(name)())

    assert message.SerializeToString().hex() == encoded
