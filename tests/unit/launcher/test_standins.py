# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import traceback
from pathlib import Path
from types import ModuleType

import pytest

STANDINS = Path(__file__).parents[3] / "packaging/static/standins"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("standin", STANDINS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["{,}", '{"a" 1}', '\n\n{"a": "\n"}', '["\\x"]', '["a'])
def test_malformed_json_gets_the_usual_sentence(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    usual = caught.value

    error = load("json/decoder.py").JSONDecodeError(usual.msg, usual.doc, usual.pos)

    assert isinstance(error, ValueError)
    assert str(error) == str(usual)


def test_a_traceback_names_the_same_places() -> None:
    def fail() -> None:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd") as caught:
        fail()

    lines = load("traceback.py").format_exception(caught.value)
    usual = "".join(traceback.format_exception(caught.value)).splitlines(keepends=True)

    assert lines == [line for line in usual if not line.startswith("    ")]
