# SPDX-License-Identifier: Apache-2.0
"""Turns values of NVIDIA's charts into values of nvct's chart.

chart_values.yaml says what each value becomes. The chart reads the same tables, so it takes the
old file, too; this writes a file with nvct's own names.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvct.agent.core import yaml_file
from nvct.errors import DocumentError

TABLES = Path(__file__).parent / "chart_values.yaml"
NO_IMAGE = "NVIDIA's image has no nvct; give nvct's in image.repository and image.tag"


def convert(values: object, file: str) -> tuple[dict[str, Any], list[str]]:
    """Return values of nvct's chart, and a sentence for each value that changed or has no effect.

    DocumentError if the file has no values, or one that nvct must refuse.
    """
    if not isinstance(values, Mapping) or "kind" in values:
        raise DocumentError(
            f"{file} has no values of a chart", hint="give what `helm get values` prints"
        )
    tables: Any = yaml_file.load(str(TABLES), "the table of values")
    charts = [name for name in values if name in tables["charts"]]
    if charts:
        return _convert_dependency(values, charts, file)
    result = _copy(values)
    for path, reason in tables["refused"].items():
        if _get(result, path):
            problem, _, remedy = reason.partition("; ")
            raise DocumentError(f"{file}: {path}: {problem}", hint=remedy or f"remove {path}")
    sentences = _rename(result, tables["renamed"])
    sentences += _drop(result, tables)
    image = result.get("image")
    if isinstance(image, dict) and re.search(
        tables["images"], str(image.get("repository", "nvidia/"))
    ):
        result["image"] = {key: image[key] for key in image if key == "pullPolicy"}
        sentences += [f"image.{key}: {NO_IMAGE}" for key in image if key != "pullPolicy"]
    return {key: value for key, value in result.items() if value not in ({}, None)}, sentences


def _convert_dependency(
    values: Mapping[str, Any], charts: list[str], file: str
) -> tuple[dict[str, Any], list[str]]:
    """Convert a parent chart's section for one of NVIDIA's charts; the other sections stay."""
    if len(charts) > 1 or "nvct" in values:
        present = [name for name in values if name in (*charts, "nvct")]
        raise DocumentError(
            f"{file} has values of {len(present)} charts: {', '.join(present)}",
            hint="convert each section in a file of its own, and put the results below nvct",
        )
    (chart,) = charts
    converted, sentences = convert(values[chart], f"{file}: {chart}")
    others = {key: value for key, value in values.items() if key != chart}
    return {**others, "nvct": converted}, [
        f"{chart} becomes nvct", *(f"{chart}.{sentence}" for sentence in sentences)
    ]  # fmt: skip


def _copy(value: Any) -> Any:  # noqa: ANN401 - a value of YAML
    return (
        {key: _copy(each) for key, each in value.items()} if isinstance(value, Mapping) else value
    )


def _get(values: Any, path: str) -> Any:  # noqa: ANN401 - a value of YAML
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _rename(values: dict[str, Any], rows: list[list[Any]]) -> list[str]:
    """Give values nvct's names, in the order of the table: a later row wins."""
    sentences = []
    for old, new, *instead in rows:
        value = _get(values, old)
        if value is None or (instead and not value):
            continue
        section = values
        *sections, key = new.split(".")
        for name in sections:
            if not isinstance(section.get(name), dict):
                section[name] = {}
            section = section[name]
        own = section.get(key)
        if isinstance(own, dict) and isinstance(value, dict):
            value = {**own, **value}
        section[key] = instead[0] if instead else value
        if not instead:
            sentences.append(f"{old} becomes {new}")
    for old, *_ in rows:
        _remove(values, old)
    return sentences


def _remove(values: dict[str, Any], path: str) -> None:
    """Remove a value, and each section that becomes empty."""
    first, _, rest = path.partition(".")
    section = values.get(first)
    if rest and isinstance(section, dict):
        _remove(section, rest)
    if first in values and (not rest or section == {}):
        del values[first]


def _drop(values: dict[str, Any], tables: Any) -> list[str]:  # noqa: ANN401 - as in the file
    """Remove values that have no effect; return a sentence for each one that is set."""
    sentences = []
    for path, reason in tables["ignored"].items():
        value = _get(values, path)
        off = isinstance(value, dict) and value.get("enabled") is False
        if value and not off:
            sentences.append(f"{path}: {reason}")
        _remove(values, path)
    unknown = [
        (values, key, f"{key}")
        for key in values
        if key not in tables["known"] and key not in tables["own"]
    ]
    for name, known in tables["known"].items():
        section = _get(values, name)
        if isinstance(section, dict):
            unknown += [(section, key, f"{name}.{key}") for key in section if key not in known]
    for section, key, path in unknown:
        if section.pop(key) not in (None, {}):
            sentences.append(f"{path}: nvct has no value of that name")
    return sentences
