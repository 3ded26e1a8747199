# SPDX-License-Identifier: Apache-2.0
"""The exporter: samples all GPUs at an interval, and serves the last sample to each scrape.

Samples are not taken by scrapes: a GPU that hangs delays no scrape, and the sample's age is a
metric. A sample that is too old is not shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace

from nvct.agent.exporter import counters as counter_file
from nvct.agent.exporter import jobs, series, usage
from nvct.agent.exporter.history import History
from nvct.agent.exporter.settings import node_labels
from nvct.agent.health import shared
from nvct.agent.nvml.client import SupervisorEndedError
from nvct.agent.waiting import until_set
from nvct.agent.web import exposition, http
from nvct.agent.web.exposition import Family, Sample
from nvct.errors import HostError, NvctError, NvmlError
from nvct.host.containers import Containers
from nvct.linux.files import write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvct.agent.exporter.counters import Counter
    from nvct.agent.exporter.pods import PodDevices
    from nvct.agent.exporter.settings import Settings
    from nvct.agent.exporter.usage import Usage
    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient
    from nvct.agent.web.guard import WebGuard
    from nvct.agent.web.http import Answer, Request
    from nvct.host.nvml.sample_model import NvmlSamples

FIRST_S = 1.0
"""Between the first two samples: performance metrics (GPM) need two."""
STALE_INTERVALS = 3
STALE_S = 10.0
"""A sample is stale after so many intervals and seconds."""
INDEX = "<html><title>GPU exporter</title><a href='./metrics'>Metrics</a></html>\n"


class Exporter:
    """The task.

    Attributes:
        reload: set to read settings and counter file again.
        port: that is served; 0 before.
    """

    def __init__(
        self,
        load: Callable[[], Settings],
        client: NvmlClient,
        journal: Log,
        pods: Callable[[Settings], PodDevices],
        library: Callable[[Settings], str],
    ) -> None:
        """Keep the arguments; nothing is opened yet.

        Args:
            load: returns the settings.
            client: of NVML.
            journal: the log.
            pods: returns who tells which pod has which device.
            library: returns the path of NVML, as `nvct.host.nvml.library`.
        """
        self.reload = asyncio.Event()
        self.port = 0
        self._load, self._client, self._log, self._pods_of = load, client, journal, pods
        self._library = library
        self._settings = load()
        self._signature: tuple[int, ...] = ()
        self._counters = self._read_counters(self._settings)
        self._pods = pods(self._settings)
        self._guard: WebGuard | None = None
        if self._settings.web_config:
            from nvct.agent.web.guard import WebGuard  # YAML and TLS, 1 MB

            self._guard = WebGuard(self._settings.web_config, journal)
        self._history = History()
        self._containers = Containers(self._settings.host_root)
        self._usages: tuple[Usage, ...] | None = None
        self._jobs: dict[str, list[str]] = {}
        self._samples: NvmlSamples | None = None
        self._at = self._duration_s = 0.0
        self._collections = {"ok": 0, "failed": 0}
        self._problem = ""
        self._has_failed = False

    async def run(self) -> None:
        """Serve until canceled.

        Raises:
            HostError: the address cannot be served.
            SupervisorEndedError: NVML cannot be asked any more.
        """
        server = http.Server(self._answer, self._guard)
        host, port = http.address(self._settings.address)
        try:
            self.port = await server.listen(host, port)
        except OSError as error:
            raise HostError(
                f"cannot serve {self._settings.address}: {error.strerror or error}",
                hint="is another exporter running? DCGM_EXPORTER_LISTEN=:PORT names another port",
            ) from error
        self._log.info(f"serving metrics on port {self.port}")
        try:
            await self._collect()
            await self._pause(FIRST_S)
            while True:
                await self._collect()
                await self._pause(self._settings.interval_s)
        finally:
            await server.close()
            await self._pods.close()
            if self._settings.textfile:  # old values would be taken for new ones
                with contextlib.suppress(OSError):
                    os.unlink(self._settings.textfile)

    def describe(self) -> list[dict[str, object]]:
        """Return what /status shows."""
        return [
            {
                "resource": "metrics",
                "state": "listed" if not self._problem else "failing",
                "reason": self._problem,
                "port": self.port,
                "gpus": len(self._samples.gpus) if self._samples else 0,
                "pods": self._pods.problem or "mapped",
            }
        ]

    def metrics(self) -> Iterator[Family]:
        """Return the exporter's own metrics, with the name of the node."""
        host = node_labels(self._settings.hostname)
        for family in self._own():
            samples = (
                Sample(value=sample.value, labels={**host, **sample.labels})
                for sample in family.samples
            )
            yield replace(family, samples=tuple(samples))

    def text(self) -> str:
        """Return what a scrape gets now."""
        return exposition.text([*self._device_families(), *self.metrics()])

    def _device_families(self) -> Iterator[Family]:
        if self._samples is not None and self._is_fresh():
            pods = self._pods.labels(self._samples)
            if self._jobs:
                pods = jobs.added(pods, self._samples, self._jobs)
            view = series.View(
                self._samples, self._history, self._settings, pods, time.time(), self._usages
            )
            yield from series.families(view, self._counters)
            held = self._pods.holders(self._samples)
            yield series.holders(self._samples, held, self._settings.hostname)
            yield from usage.families(self._usages or (), self._settings.hostname)

    def _is_fresh(self) -> bool:
        """Return whether there is a sample that is shown."""
        stale_s = STALE_INTERVALS * self._settings.interval_s + STALE_S
        return self._samples is not None and time.monotonic() - self._at <= stale_s

    def _own(self) -> Iterator[Family]:
        if self._samples is not None:
            age = Sample(value=round(time.monotonic() - self._at, 3))
            yield Family(name="nvct_exporter_sample_age_seconds",
                         help="Seconds since the GPUs were sampled.", samples=(age,))  # fmt: skip
        yield Family(
            name="nvct_exporter_collections_total",
            help="Samples of all GPUs, by result.",
            kind="counter",
            samples=tuple(
                Sample(value=number, labels={"result": result})
                for result, number in self._collections.items()
            ),
        )
        yield Family(
            name="nvct_exporter_collection_seconds",
            help="Seconds that the last sample of all GPUs took.",
            samples=(Sample(value=round(self._duration_s, 6)),),
        )
        yield Family(
            name="nvct_exporter_gpu_skipped_total",
            help="How often a GPU was left out of a sample because it did not answer.",
            kind="counter",
            samples=tuple(
                Sample(value=number, labels={"gpu": index})
                for index, number in sorted(self._history.skipped.items())
            ),
        )
        yield from self._xids()
        up = Sample(value=int(not self._pods.problem), labels={"reason": self._pods.problem})
        yield Family(
            name="nvct_pod_mapping_up",
            help="Whether series have the labels of pods; why not.",
            samples=(up,),
        )
        if engine := shared.existing(self._client):  # of a task that offers the GPUs
            yield from engine.metrics()

    def _xids(self) -> Iterator[Family]:
        rows = [
            ({"UUID": uuid, "GPU_I_ID": "" if gi < 0 else str(gi), "xid": str(xid)}, count, at)
            for (uuid, gi), counts in sorted(self._history.xids.items())
            for xid, (count, at) in sorted(counts.items())
        ]
        yield Family(
            name="nvct_xid_errors_total",
            help="XID errors since this program started.",
            kind="counter",
            samples=tuple(Sample(value=count, labels=labels) for labels, count, _ in rows),
        )
        yield Family(
            name="nvct_xid_last_timestamp_seconds",
            help="When an XID error occurred last, in seconds since 1970.",
            samples=tuple(Sample(value=round(at, 3), labels=labels) for labels, _, at in rows),
        )

    async def _collect(self) -> None:
        """Take a sample; one that fails keeps the sample before it."""
        if self.reload.is_set():
            self.reload.clear()
            await self._read_settings()
        elif _signature(self._settings.collectors) != self._signature:
            self._read_changed_counters()
        began = time.monotonic()
        try:
            if self._client.chooses_library and (self._has_failed or not self._client.library):
                self._client.library = self._library(self._settings)
            samples = await self._client.samples()
        except SupervisorEndedError:
            raise
        except (NvmlError, HostError) as error:
            self._has_failed = True  # the driver may be another one the next time
            self._collections["failed"] += 1
            self._tell(", ".join([error.message, *self._write_text()]))
            return
        finally:
            self._duration_s = time.monotonic() - began
        self._samples, self._at, self._has_failed = samples, time.monotonic(), False
        self._collections["ok"] += 1
        keep_ms = max(self._settings.xid_window_ms, self._settings.clock_window_ms)
        self._history.add(samples, time.time(), keep_ms / 1000)
        problems = [f"GPU {index}: {why}" for index, why in samples.unanswered.items()]
        await self._pods.refresh()
        if self._settings.job_folder:
            self._jobs, problem = jobs.read(self._settings.job_folder)
            problems += [problem] if problem else []
        self._usages = self._used(samples) if self._settings.processes else None
        self._tell(", ".join([*problems, *self._write_text()]))

    def _used(self, samples: NvmlSamples) -> tuple[Usage, ...]:
        """Return what the containers of this host use of the GPUs."""
        self._containers.refresh()
        return usage.usages(samples, self._containers.labels)

    async def _pause(self, seconds: float) -> None:
        """Wait for the next sample; a reload ends the wait."""
        await until_set(self.reload, seconds)

    async def _read_settings(self) -> None:
        """Read settings and counter file again; those before stay if they are wrong."""
        try:
            settings = self._load()
            counters = self._read_counters(settings)
        except NvctError as error:
            self._log.error(f"{error.message}: the former counters stay in force")
            return
        await self._pods.close()
        self._settings, self._pods = settings, self._pods_of(settings)
        self._counters = counters
        self._log.info("read the counter file again")

    def _read_changed_counters(self) -> None:
        """Read the counter file, which has changed; the counters stay if it is wrong."""
        try:
            self._counters = self._read_counters(self._settings)
        except NvctError as error:
            self._log.error(f"{error.message}: the former counters stay in force")
        else:
            self._log.info("read the counter file again")

    def _read_counters(self, settings: Settings) -> tuple[Counter, ...]:
        """Return the counters of the file, after warnings are logged."""
        self._signature = _signature(settings.collectors)
        return self._log.warned(counter_file.read(settings.collectors))

    def _write_text(self) -> list[str]:
        """Write all metrics into the file that is wanted, if any; return why that fails."""
        path = self._settings.textfile
        try:
            if path:
                write_atomic(path, self.text().encode(), mode=0o644, sync=False)
        except OSError as error:
            return [f"cannot write {path}: {error.strerror}"]
        except NvctError as error:  # it is a folder, or another user's in /tmp
            return [error.message]
        return []

    def _tell(self, problem: str) -> None:
        """Log a problem when it comes and when it goes."""
        if problem != self._problem:
            if problem:
                self._log.warning(problem)
            else:
                self._log.info("all GPUs answer")
        self._problem = problem

    def _answer(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return http.Answer(404, "there are GET /metrics and /health\n")
        if request.path == "/metrics":
            return http.Answer(200, self.text(), exposition.CONTENT_TYPE)
        if request.path == "/health":
            has_metrics = "true" if self._is_fresh() else "false"
            return http.Answer(200, "OK", headers=(("X-Registry-Available", has_metrics),))
        if request.path == "/":
            return http.Answer(200, INDEX, "text/html; charset=utf-8")
        return http.Answer(404, "there are GET /metrics and /health\n")


def _signature(path: str) -> tuple[int, ...]:
    """Return what differs if a file was replaced or written, () if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
