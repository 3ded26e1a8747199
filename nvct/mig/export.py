# SPDX-License-Identifier: Apache-2.0
"""A machine's current MIG configuration as a document of nvidia-mig-parted, and its named ones.

The named configurations come from three layers: the built-in tables, the hardware, a file. A name
in a later layer replaces the same name in an earlier one. So a user's file need not list the
configurations of the hardware, and new GPUs need no new list.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from nvct.errors import HostError, UsageError
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.mig import config, layout, tables
from nvct.mig.config import Configs, Spec
from nvct.mig.layout import devices, layout_of, natural

Entry: TypeAlias = dict[str, Any]
Document: TypeAlias = Mapping[str, Sequence[Entry]]

VERSION = "v1"
BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""The number of instances by their slices, by the GPU's slices, as in NVIDIA's program."""


def current(state: MigState, label: str = "current") -> Document:
    """Return the GPUs' current configuration; GPUs with the same layout share an entry."""
    groups: list[tuple[bool, Counter[str], list[MigGpu]]] = []
    for gpu in state.gpus:
        wish = devices(gpu, layout_of(gpu))
        for enabled, other, members in groups:
            if (enabled, other) == (gpu.enabled, wish):
                members.append(gpu)
                break
        else:
            groups.append((gpu.enabled, wish, [gpu]))
    models = {device_filter(gpu) for gpu in state.gpus}
    entries = []
    for enabled, wish, members in groups:
        filters = sorted({device_filter(gpu) for gpu in members})
        all_of_them = [gpu for gpu in state.gpus if device_filter(gpu) in filters]
        entry: Entry = {}
        if len(models) > 1 and len(groups) > 1:
            entry["device-filter"] = filters[0] if len(filters) == 1 else filters
        indices = [gpu.index for gpu in members]
        entry["devices"] = "all" if len(members) == len(all_of_them) else indices
        entries.append({**entry, "mig-enabled": enabled, "mig-devices": dict(wish)})
    return {label: entries}


def generated(state: MigState) -> Document:
    """Return a configuration for each profile of the GPUs, a balanced one, all off, and all on.

    HostError if no GPU has a MIG mode.
    """
    capable = [gpu for gpu in state.gpus if gpu.capable]
    if not capable:
        raise HostError(
            "failed to discover MIG profiles: no MIG-capable devices found on the system"
        )
    models = {device_filter(gpu): gpu for gpu in capable}
    limits: dict[str, dict[int, list[str]]] = {}
    for model, gpu in sorted(models.items()):
        for profile in gpu.profiles:
            limits.setdefault(profile.name, {}).setdefault(profile.limit, []).append(model)
    document: dict[str, list[Entry]] = {
        f"all-{name.replace('+', '.')}": [
            _entry(models, of_limit, {name: limit}) for limit, of_limit in sorted(by_limit.items())
        ]
        for name, by_limit in limits.items()
    }
    balanced = {model: _balanced(gpu) for model, gpu in sorted(models.items())}
    entries = [_entry(models, [model], wish) for model, wish in balanced.items() if wish]
    if entries:
        document["all-balanced"] = entries
    document["all-disabled"] = [{"devices": "all", "mig-enabled": False, "mig-devices": {}}]
    document["all-enabled"] = [{"devices": "all", "mig-enabled": True, "mig-devices": {}}]
    return document


def device_filter(gpu: MigGpu) -> str:
    """Return the filter for GPUs of the same model."""
    return f"0x{gpu.device:08X}"


def as_json(document: Document) -> str:
    """Return a document as JSON like Go's, without a newline at the end."""
    sorted_wishes = {
        label: [
            {**entry, "mig-devices": dict(sorted(entry["mig-devices"].items()))}
            for entry in document[label]
        ]
        for label in sorted(document)
    }
    return json.dumps({"version": VERSION, "mig-configs": sorted_wishes}, indent=2)


def as_yaml(document: Document) -> str:
    """Return a document as YAML, as NVIDIA's program writes it."""
    lines = [f"version: {VERSION}", "mig-configs:"]
    for label in sorted(document, key=natural):
        lines.append(f"  {label}:")
        for entry in document[label]:
            fields = list(_yaml_fields(entry))
            lines += [f"  - {fields[0]}", *(f"    {field}" for field in fields[1:])]
    return "\n".join(lines) + "\n"


def _yaml_fields(entry: Entry) -> Iterable[str]:
    if "device-filter" in entry:
        filters = entry["device-filter"]
        is_one = isinstance(filters, str)
        yield f"device-filter: {_quoted(filters) if is_one else _flow(map(_quoted, filters))}"
    indices = entry["devices"]
    yield f"devices: {indices if indices == 'all' else _flow(map(str, indices))}"
    yield f"mig-enabled: {str(entry['mig-enabled']).lower()}"
    wish = entry["mig-devices"]
    yield "mig-devices:" if wish else "mig-devices: {}"
    for name in sorted(wish, key=natural):
        yield f"  {name}: {wish[name]}"


def _quoted(text: str) -> str:
    return f'"{text}"'


def _flow(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def _entry(models: Mapping[str, MigGpu], which: list[str], wish: dict[str, int]) -> Entry:
    entry: Entry = {"device-filter": which} if len(models) > 1 else {}
    return {**entry, "devices": "all", "mig-enabled": True, "mig-devices": wish}


def _balanced(gpu: MigGpu) -> dict[str, int]:
    plain = [(layout.parse_profile(p.name), p.limit) for p in gpu.profiles]
    plain = [(name, limit) for name, limit in plain if not name.attributes]
    slices = max((name.slices for name, _ in plain), default=0)
    wish = {}
    for size, count in BALANCED.get(slices, {}).items():
        fitting = [(limit, name) for name, limit in plain if name.slices == size]
        if not fitting:
            return {}
        wish[str(max(fitting, key=lambda pair: pair[0])[1])] = count
    return wish


Layer: TypeAlias = Literal["table", "hardware", "file"]


LAYERS: tuple[Layer, ...] = ("file", "hardware", "table")  # The first one that has a name counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A configuration, and the layer that it comes from."""

    layer: Layer
    specs: Sequence[Spec]


def configs(state: MigState, text: str = "") -> dict[str, Named]:
    """Return all configurations by name, sorted; `text` is a file, DocumentError if malformed."""
    found: dict[str, Named] = {}
    for layer in reversed(LAYERS):
        parsed = _layer(layer, state, text)
        found.update({name: Named(layer=layer, specs=specs) for name, specs in parsed.items()})
    return {name: found[name] for name in sorted(found, key=natural)}


def find(state: MigState, text: str, name: str) -> Sequence[Spec]:
    """Return the configuration with a name, with arguments as of `configs`.

    UsageError if there is none; DocumentError if the file is malformed.
    """
    for layer in LAYERS:  # most names are found before the tables are read
        parsed = _layer(layer, state, text)
        if name in parsed:
            return parsed[name]
    import difflib

    names = configs(state, text)
    near = difflib.get_close_matches(name, names, 2)
    known = [each for each, named in names.items() if named.layer != "table"] or [*names]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"there is no MIG configuration {name!r}", hint=hint)


def _layer(layer: Layer, state: MigState, text: str) -> Configs:
    if layer == "file":
        return config.parse(text) if text else {}
    known = MigState(gpus=tuple(_known_gpus())) if layer == "table" else state
    try:
        configs_of_known = generated(known)
    except HostError:
        return {}  # no GPU has a MIG mode
    return config.of_document({"version": VERSION, "mig-configs": configs_of_known})


def _known_gpus() -> Iterator[MigGpu]:
    """Yield a GPU for each PCI id of the tables."""
    for table in tables.tables():
        for number in table.ids:
            yield replace(tables.gpu_of(table), device=number << 16 | tables.NVIDIA)
