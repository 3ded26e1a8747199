# SPDX-License-Identifier: Apache-2.0
"""The exporter: samples all GPUs at an interval, and serves the last sample to each scrape.

A scrape takes no sample, so a GPU that hangs does not delay it. The sample's age is a metric, and
a sample that is too old is not served.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from nvct.agent.core.context import Context, Shared
from nvct.agent.core.logs import Log
from nvct.agent.core.task import Task
from nvct.agent.core.waiting import until_set
from nvct.agent.exporter import counters as counter_file
from nvct.agent.exporter import series, settings, usage
from nvct.agent.exporter.counters import Counter
from nvct.agent.exporter.history import History
from nvct.agent.exporter.pods import PodDevices, read_jobs, with_jobs
from nvct.agent.exporter.settings import Settings, node_labels
from nvct.agent.exporter.usage import Usage
from nvct.agent.host_side import Host
from nvct.agent.machine.driver_root import with_driver_roots
from nvct.agent.machine.folder_watch import Identity, identity
from nvct.agent.machine.place import Place
from nvct.agent.nvml.client import NvmlClient, ReleasedError
from nvct.agent.nvml.host_verbs import ProcessContainers
from nvct.agent.web import exposition, http
from nvct.agent.web.exposition import Family, family
from nvct.agent.web.http import Answer, Request
from nvct.errors import HostError, NvctError, NvmlError
from nvct.host import gpu_record
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.sample_model import NvmlSamples
from nvct.host.roots import Roots
from nvct.linux.files import write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.web.guard import WebGuard

FIRST_S = 1.0  # Between the first two samples: performance metrics (GPM) need two
STALE_INTERVALS = 3
STALE_S = 10.0  # A sample is stale after so many intervals and, added to them, so many seconds
INDEX = "<html><title>GPU exporter</title><a href='./metrics'>Metrics</a></html>\n"


def make(context: Context) -> Exporter:
    """Return the task."""

    def load() -> Settings:
        known = replace(context, env=with_driver_roots(context.env))
        return known.load(settings.resolve)

    def pods(known: Settings) -> PodDevices:
        metadata = slices = None
        if known.claims or known.pod_labels or known.pod_uid:
            from nvct.agent.exporter.pod_metadata import PodMetadata, SliceDevices

            if known.claims:
                slices = SliceDevices(context.connect, context.node, context.journal)
            if known.pod_labels or known.pod_uid:
                metadata = PodMetadata(context.connect, context.node, context.journal, known)
        return PodDevices(known, context.journal, metadata=metadata, slices=slices)

    return Exporter(load, context.client, context.journal, pods, shared=context.shared)


def library(known: Settings) -> str:
    """Return the path of NVML's library: in this container's driver root, else below /."""
    root = known.container_driver_root
    return nvml_library(Roots(driver_root=root if os.path.isdir(root) else "/"))


class Exporter(Task):
    """The exporter's task; the event `reload` makes it read settings and counter file again."""

    def __init__(
        self,
        load: Callable[[], Settings],
        client: NvmlClient,
        journal: Log,
        pods: Callable[[Settings], PodDevices],
        library: Callable[[Settings], str] = library,
        *,
        shared: Shared | None = None,
    ) -> None:
        super().__init__(journal)
        self.port = 0
        self._load, self._client, self._pods_of = load, client, pods
        self._library = library
        self._shared = shared or Shared()
        self._settings = load()
        self._file: Identity = None
        self._counters = self._read_counters(self._settings)
        self._pods = pods(self._settings)
        self._guard: WebGuard | None = None
        if self._settings.web_config:
            from nvct.agent.web.guard import WebGuard  # YAML and TLS, 1 MB

            self._guard = WebGuard(self._settings.web_config, journal)
        self._history = History()
        self._host = Host(client, self._place)
        self._usages: tuple[Usage, ...] | None = None
        self._jobs: dict[str, list[str]] = {}
        self._samples: NvmlSamples | None = None
        self._at = self._duration_s = 0.0
        self._collections = {"ok": 0, "failed": 0}
        self._failure = ""
        self._has_failed = False

    async def run(self) -> None:
        """Serve; HostError if the address cannot be used, SupervisorEndedError if NVML is gone."""
        server = http.Server(self._answer, self._guard)
        host, port = http.address(self._settings.address)
        try:
            self.port = await server.listen(host, port)
        except OSError as error:
            raise HostError(
                f"cannot serve {self._settings.address}: {error.strerror or error}",
                hint="if another exporter is running, set DCGM_EXPORTER_LISTEN=:PORT",
            ) from error
        self._log.info(f"serving metrics on port {self.port}")
        try:
            await self._collect()
            await until_set(self.reload, FIRST_S)
            while True:
                await self._collect()
                await until_set(self.reload, self._settings.interval_s)
        finally:
            await server.close()
            await self._pods.close()
            if self._settings.textfile:  # or its old values would be taken for new ones
                with contextlib.suppress(OSError):
                    os.unlink(self._settings.textfile)

    def describe(self) -> list[dict[str, object]]:
        """Return what /status shows."""
        return [
            {
                "resource": "metrics",
                "state": "listed" if not self._failure else "failing",
                "reason": self._failure,
                "port": self.port,
                "gpus": len(self._samples.gpus) if self._samples else 0,
                "pods": self._pods.problem or "mapped",
            }
        ]

    def metrics(self) -> Iterator[Family]:
        """Return the exporter's own metrics, with the name of the node."""
        host = node_labels(self._settings.hostname)
        for each in self._own():
            samples = (replace(one, labels={**host, **one.labels}) for one in each.samples)
            yield replace(each, samples=tuple(samples))

    def text(self) -> str:
        """Return the text that a scrape gets now."""
        return exposition.text([*self._device_families(), *self.metrics()])

    def _device_families(self) -> Iterator[Family]:
        if self._samples is not None and self._is_fresh():
            pods = self._pods.labels(self._samples)
            if self._jobs:
                pods = with_jobs(pods, self._samples, self._jobs)
            view = series.View(
                self._samples, self._history, self._settings, pods, time.time(), self._usages
            )
            yield from series.families(view, self._counters)
            held = self._pods.holders(self._samples)
            yield series.holders(self._samples, held, self._settings.hostname)
            yield from usage.families(self._usages or (), self._settings.hostname)

    def _is_fresh(self) -> bool:
        stale_s = STALE_INTERVALS * self._settings.interval_s + STALE_S
        return self._samples is not None and time.monotonic() - self._at <= stale_s

    def _own(self) -> Iterator[Family]:
        if self._samples is not None:
            age_s = round(time.monotonic() - self._at, 3)
            help_text = "Seconds since the GPUs were sampled."
            yield family("nvct_exporter_sample_age_seconds", help_text, [(age_s, {})])
        results = [(number, {"result": result}) for result, number in self._collections.items()]
        help_text = "Samples of all GPUs, by result."
        yield family("nvct_exporter_collections_total", help_text, results)
        help_text = "Seconds that the last sample of all GPUs took."
        took_s = round(self._duration_s, 6)
        yield family("nvct_exporter_collection_seconds", help_text, [(took_s, {})])
        skipped = [(n, {"gpu": index}) for index, n in sorted(self._history.skipped.items())]
        help_text = "How often a GPU was left out of a sample because it did not answer."
        yield family("nvct_exporter_gpu_skipped_total", help_text, skipped)
        xids = [
            ({"UUID": uuid, "GPU_I_ID": "" if gi < 0 else str(gi), "xid": str(xid)}, count, at)
            for (uuid, gi), counts in sorted(self._history.xids.items())
            for xid, (count, at) in sorted(counts.items())
        ]
        times = [(count, labels) for labels, count, _ in xids]
        yield family("nvct_xid_errors_total", "XID errors since this program started.", times)
        help_text = "When an XID error occurred last, in seconds since 1970."
        last = [(round(at, 3), labels) for labels, _, at in xids]
        yield family("nvct_xid_last_timestamp_seconds", help_text, last)
        problem = self._pods.problem
        help_text = "Whether series have the labels of pods; if not, the reason."
        yield family("nvct_pod_mapping_up", help_text, [(int(not problem), {"reason": problem})])
        yield from usage.recorded(gpu_record.read())
        if self._shared.health:  # of a task that offers the GPUs
            yield from self._shared.health.metrics()

    async def _collect(self) -> None:
        """Take a sample; if that fails, the sample before it stays."""
        if self.reload.is_set() or identity(self._settings.collectors) != self._file:
            await self._read_again()
        began = time.monotonic()
        try:
            if self._client.chooses_library and (self._has_failed or not self._client.library):
                self._client.library = self._library(self._settings)
            samples = await self._client.samples()
        except (NvmlError, HostError) as error:
            self._has_failed = True  # the driver may be another one the next time
            if isinstance(error, ReleasedError):
                self._samples = None
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
            self._jobs, problem = read_jobs(self._settings.job_folder)
            problems += [problem] if problem else []
        self._usages = await self._used(samples) if self._settings.processes else None
        self._tell(", ".join([*problems, *self._write_text()]))

    async def _used(self, samples: NvmlSamples) -> tuple[Usage, ...] | None:
        """Return what the containers of this host use of the GPUs; None if that is unknown."""
        pids = {process.pid for gpu in samples.gpus for process in gpu.processes}
        call = ProcessContainers(pids=tuple(sorted(pids)))
        try:
            labels = await self._host.ask(call, dict[str, dict[str, str]]) if pids else {}
        except NvctError as error:
            self._log.debug(error.message)
            return None
        return usage.usages(samples, lambda pid: labels.get(str(pid), {}))

    def _place(self) -> Place:
        return Place(roots=Roots(), host_root=self._settings.host_root)

    async def _read_again(self) -> None:
        """Read the counter file, and on a reload the settings; an error keeps the former ones."""
        is_reload = self.reload.is_set()
        self.reload.clear()
        try:
            known = self._load() if is_reload else self._settings
            counters = self._read_counters(known)
        except NvctError as error:
            self._log.error(f"{error.message}: the former counters stay in force")
            return
        if is_reload:
            await self._pods.close()
            self._pods = self._pods_of(known)
        self._settings, self._counters = known, counters
        self._log.info("read the counter file again")

    def _read_counters(self, known: Settings) -> tuple[Counter, ...]:
        self._file = identity(known.collectors)
        return self._log.warned(counter_file.read(known.collectors))

    def _write_text(self) -> list[str]:
        """Write all metrics into the settings' text file, if any; return why that fails."""
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
        if problem != self._failure:
            if problem:
                self._log.warning(problem)
            else:
                self._log.info("all GPUs answer")
        self._failure = problem

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
