# SPDX-License-Identifier: Apache-2.0
"""Turns samples into metrics with dcgm-exporter's names, types, help texts and labels, in order.

A value that NVML does not report has no series; `nvct_metric_unavailable` names it and the reason.
Contract: pure functions.
"""

from __future__ import annotations

import functools
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvct.agent.exporter import counters
from nvct.agent.exporter.counters import FIELDS, Counter, Field
from nvct.agent.exporter.history import History
from nvct.agent.exporter.settings import Settings, node_labels
from nvct.agent.exporter.usage import Usage
from nvct.agent.web.exposition import Family, Sample, family
from nvct.host import faults
from nvct.host.nvml.sample_model import GpuSample, MigSample, NvmlSamples

Pods: TypeAlias = Mapping[tuple[str, int], Sequence[Mapping[str, str]]]
"""Labels of each pod that has a GPU (its UUID and -1) or a GPU instance (UUID and id)."""

WHOLE = -1
PER_PROCESS = {"DCGM_FI_DEV_GPU_UTIL": ("sm", 1), "DCGM_FI_DEV_FB_USED": ("memory", 2**20)}
"""Attribute of `usage.Usage` and its divisor, for the fields that NVML also has by process."""
BOARD = ("gpu_utilization", "memory_utilization", "encoder_utilization", "decoder_utilization")
"""Values of a GPU that say nothing about one of its instances."""
UNKNOWN_XID = "Unknown Error"  # The label err_msg of an XID that NVIDIA's exporter does not know


@dataclass(frozen=True, slots=True)
class Entity:
    """A GPU or GPU instance that has series."""

    gpu: GpuSample
    mig: MigSample | None

    @property
    def key(self) -> tuple[str, int]:
        """Return UUID of the GPU and id of the instance."""
        return self.gpu.uuid, self.mig.gi if self.mig else WHOLE

    def value(self, name: str) -> tuple[float | None, str]:
        """Return a value of `sample_model.VALUES`, or None and the reason."""
        if name == "memory_used_ratio":
            return self._used_ratio()
        own = self.mig
        if own and (name in own.values or name in own.errors):
            return own.values.get(name), own.errors.get(name, "")
        if own and name in BOARD:
            return None, "NVML does not report it for MIG instances"
        return self.gpu.values.get(name), self.gpu.errors.get(name, "not reported")

    def number(self, field: Field) -> tuple[float | None, str]:
        """Return the value of a field in its unit, or None and the reason."""
        value, why = self.value(field.value)
        if value is not None:
            value = value / field.divisor if field.is_float else int(value) // field.divisor
        return value, why

    def _used_ratio(self) -> tuple[float | None, str]:
        """Return used memory as a part of the unreserved memory, as DCGM computes it."""
        (used, why), (total, _) = self.value("memory_used"), self.value("memory_total")
        usable = (total or 0) - (self.value("memory_reserved")[0] or 0)
        return (None, why or "not reported") if used is None or not usable else (used / usable, "")


@dataclass(frozen=True, slots=True)
class View:
    """The data that metrics are made from."""

    samples: NvmlSamples
    history: History
    settings: Settings
    pods: Pods
    now: float  # seconds since 1970
    # what containers use, by their processes; None if that is not known
    usages: Sequence[Usage] | None = None


def families(view: View, counters: Sequence[Counter]) -> Iterator[Family]:
    """Yield the metrics of a counter file, and the one that says which are unavailable."""
    samples, settings = view.samples, view.settings
    entities = list(_entities(samples, settings))
    unavailable: Tally[tuple[str, str]] = Tally()
    texts = _texts(samples, counters)
    for counter in counters:
        if counter.reason:
            unavailable[counter.name, counter.reason] = len(entities)
            continue
        if counter.kind == "label":
            continue
        rows: list[Sample] = []
        for entity in entities:
            labels = {**_labels(entity, settings), **texts.get(entity.gpu.uuid, {})}
            for value, extra in _values(counter, entity, view, unavailable):
                for own, pod in _by_pod(counter, entity, view, value):
                    attributes = dict(sorted({**extra, **pod}.items()))
                    rows.append(Sample(value=own, labels={**labels, **attributes}))
        is_float = counter.field in FIELDS and FIELDS[counter.field].is_float
        yield Family(
            name=counter.name, help=counter.help, kind=counter.kind, samples=tuple(rows),
            fixed=is_float,
        )  # fmt: skip
    reasons = sorted(unavailable.items())
    counts = [(n, {"metric": metric, "reason": why}) for (metric, why), n in reasons]
    help_text = "GPUs and MIG instances without a series of this metric, by the reason."
    yield family("nvct_metric_unavailable", help_text, counts)


def _by_pod(
    counter: Counter, entity: Entity, view: View, value: float
) -> Iterator[tuple[float, Mapping[str, str]]]:
    """Yield a device's value with the labels of each container that has the device.

    If containers share the device and its processes are known, a value of PER_PROCESS is yielded
    in parts: each container's own, and the whole without a container. An unknown part is left out.
    """
    pods = view.pods.get(entity.key) or ({},)
    of_process = PER_PROCESS.get(counter.field)
    if view.usages is None or of_process is None or not any("vgpu" in pod for pod in pods):
        yield from ((value, pod) for pod in pods)
        return
    yield value, {}
    name, divisor = of_process
    used = [usage for usage in view.usages if (usage.gpu.uuid, usage.gi) == entity.key]
    # A pod without a process here uses nothing, unless the pod of some process is unknown.
    has_names = all(usage.has_pod or not usage.holder[0] for usage in used)
    is_complete = has_names and (not used or any(usage.has_pod for usage in used))
    # NVML does not report the time of a process that has used none.
    is_idle = name == "sm" and (not value or any(usage.sm is not None for usage in used))
    for pod in pods:
        holder = tuple(pod.values())[:3]
        parts = [getattr(usage, name) for usage in used if usage.holder == holder]
        parts = [0 if part is None and is_idle else part for part in parts]
        if None not in parts and (parts or is_complete):
            yield sum(parts) // divisor, pod


def holders(samples: NvmlSamples, pods: Pods, hostname: str) -> Family:
    """Return the metric that shows which containers have a device, including shared ones."""
    host = node_labels(hostname)
    indices = {gpu.uuid: str(gpu.index) for gpu in samples.gpus}
    rows = [
        {**host, "gpu": indices[uuid], "UUID": uuid, **instance, **pod}
        for (uuid, gi), holding in pods.items()
        for instance in [{"GPU_I_ID": str(gi)} if gi >= 0 else {}]
        for pod in holding
    ]
    help_text = "Containers that have a GPU or MIG instance, for joins: always 1."
    return family("nvct_gpu_pod_info", help_text, [(1, labels) for labels in rows])


def _entities(samples: NvmlSamples, settings: Settings) -> Iterator[Entity]:
    for gpu in samples.gpus:
        if settings.indices and gpu.index not in settings.indices:
            continue
        instances = {mig.gi: mig for mig in gpu.mig} if settings.devices != "g" else {}
        for gi in sorted(instances):
            yield Entity(gpu, instances[gi])
        if not instances and settings.devices != "i":
            yield Entity(gpu, None)


def _labels(entity: Entity, settings: Settings) -> dict[str, str]:
    gpu = entity.gpu
    model = "-".join(gpu.name.split()) if settings.replace_blanks else gpu.name
    labels = {
        "gpu": str(gpu.index),
        "uuid" if settings.old_namespace else "UUID": gpu.uuid,
        "pci_bus_id": gpu.bus_id,
        "device": f"nvidia{gpu.index}",
        "modelName": model,
    }
    if entity.mig:
        labels.update({"GPU_I_PROFILE": entity.mig.profile, "GPU_I_ID": str(entity.mig.gi)})
    if settings.hostname:
        labels[settings.hostname_label] = settings.hostname
    return labels


def _texts(samples: NvmlSamples, counters: Iterable[Counter]) -> dict[str, dict[str, str]]:
    """Return each GPU's labels that come from fields, by its UUID."""
    wanted = {c.field: c.name for c in counters if c.kind == "label"}
    texts = {}
    for gpu in samples.gpus:
        values = {
            "DCGM_FI_DRIVER_VERSION": samples.driver_version,
            "DCGM_FI_NVML_VERSION": samples.nvml_version,
            "DCGM_FI_DEV_SERIAL": gpu.serial,
            "DCGM_FI_DEV_VBIOS_VERSION": gpu.vbios,
            "DCGM_FI_DEV_NAME": gpu.name,
            "DCGM_FI_DEV_UUID": gpu.uuid,
            "DCGM_FI_DEV_PCI_BUSID": gpu.bus_id,
            "DCGM_FI_DEV_MINOR_NUMBER": str(gpu.minor) if gpu.minor >= 0 else "",
            "DCGM_FI_DEV_BRAND": _brand(gpu.brand),
            **dict(_numbers(Entity(gpu, None), wanted)),
        }
        found = {wanted[field]: text for field, text in values.items() if field in wanted and text}
        texts[gpu.uuid] = dict(sorted(found.items()))
    return texts


def _numbers(entity: Entity, wanted: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield fields that are numbers, as DCGM writes them into labels."""
    for name in wanted:
        if field := FIELDS.get(name):
            value, _ = entity.number(field)
            if value is not None:
                yield name, f"{value:f}" if field.is_float else str(value)


def _brand(number: str) -> str:
    if not number.isdigit():
        return ""
    return counters.BRANDS[int(number) if int(number) < len(counters.BRANDS) else 0]


def _values(
    counter: Counter, entity: Entity, view: View, unavailable: Tally[tuple[str, str]]
) -> Iterator[tuple[float, dict[str, str]]]:
    (uuid, gi), history, settings = entity.key, view.history, view.settings
    if counter.field == counters.XID:
        xid = history.last_xid(uuid, gi)
        yield xid, {"err_code": str(xid), "err_msg": _xid_texts().get(xid, UNKNOWN_XID)}
    elif counter.field == counters.XID_COUNT:
        window = {"window_size_in_ms": str(settings.xid_window_ms)}
        counts = history.xids_since(view.now - settings.xid_window_ms / 1000, uuid, gi)
        yield from ((n, {"xid": str(xid), **window}) for xid, n in sorted(counts.items()))
        if not counts:
            yield 0, window
    elif counter.field == counters.CLOCK_EVENTS:
        window = {"window_size_in_ms": str(settings.clock_window_ms)}
        events = history.clock_events_since(view.now - settings.clock_window_ms / 1000, uuid)
        yield from ((n, {"clock_event": name, **window}) for name, n in sorted(events.items()))
        if not events:
            yield 0, window
    else:
        if counter.field in counters.LINK_RATES:
            value, why = _link_rate(entity, history, counters.LINK_RATES[counter.field])
        else:
            value, why = entity.number(FIELDS[counter.field])
        if value is None:
            unavailable[counter.name, why] += 1
        else:
            yield value, {}


def _link_rate(entity: Entity, history: History, names: Sequence[str]) -> tuple[float | None, str]:
    rates = history.rates.get(entity.gpu.uuid, {})
    if all(name in rates for name in names):
        return int(sum(rates[name] for name in names) / counters.LINK_UNIT), ""
    first = "two samples are needed, and this is the first"
    return None, entity.gpu.errors.get(names[0], first)


_xid_texts = functools.cache(faults.texts)
