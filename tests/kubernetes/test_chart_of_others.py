# SPDX-License-Identifier: Apache-2.0
"""Values of NVIDIA's charts for the device plugin, GPU Feature Discovery and the GPU operator; guide E's helm commands."""

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from typing import Any

import pytest
import yaml

from nvct.version import __version__
from tests.kubernetes import chart_values, reach
from tests.kubernetes.rendering import (
    CHART,
    agent_of,
    env_of,
    find_helm,
    ignored_with,
    objects_of,
    pod_of,
    rendered,
    volume_of,
)
from tests.kubernetes.test_chart_values import PAGE

pytestmark = pytest.mark.slow
UPDATE = "updateStrategy"


def test_the_config_files_of_the_device_plugins_chart() -> None:
    files = {"whole": "version: v1", "shared": "version: v1\nsharing: {}"}
    config = {"map": files, "default": "whole", "fallbackStrategies": ["empty"]}
    objects = rendered({"config": config})
    assert objects["ConfigMap", "nvct-configs"]["data"] == files
    env = env_of(agent_of(pod_of(objects)))
    assert (env["DEFAULT_CONFIG"], env["FALLBACK_STRATEGIES"]) == ("whole", "empty")
    assert "config-manager" in env["NVCT_AGENT_TASKS"]
    of_others = rendered({"config": {"name": "mine"}})
    assert ("ConfigMap", "nvct-configs") not in of_others
    for found, name in ((objects, "nvct-configs"), (of_others, "mine")):
        volume = volume_of(pod_of(found), "available-configs")
        assert volume["configMap"] == {"name": name}


def test_what_these_charts_say_of_pods() -> None:
    limits = {"limits": {"memory": "300Mi"}}
    template = rendered(
        {
            "podAnnotations": {"a": "b"},
            "daemonsets": {"annotations": {"c": "d"}},
            "priorityClassName": "mine",
            "resources": limits,
        }
    )["DaemonSet", "nvct"]["spec"]["template"]
    assert {"a": "b", "c": "d"}.items() <= template["metadata"]["annotations"].items()
    assert template["spec"]["priorityClassName"] == "mine"
    assert agent_of(template["spec"])["resources"] == limits


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve the chart as a repository, and add it as nvdp; yield the variables for helm."""
    folder = tmp_path_factory.mktemp("repository")
    env = {f"HELM_{kind}_HOME": str(folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}

    def call(*words: str) -> None:
        done = subprocess.run(
            [str(find_helm()), *words], env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, done

    call("package", str(CHART), f"--destination={folder}")
    server = HTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=str(folder)))
    url = f"http://127.0.0.1:{server.server_port}"
    call("repo", "index", str(folder), f"--url={url}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    call("repo", "add", "nvdp", url)
    call("repo", "update")
    yield {**env, "URL": url}
    server.shutdown()
    server.server_close()


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {}),
        (("--set", "compatWithCPUManager=true", "--set", "resources.requests.cpu=100m",
          "--set", "resources.limits.memory=512Mi"), {"PASS_DEVICE_SPECS": "true"}),
        (("--set", "compatWithCPUManager=true", "--set", "migStrategy=mixed"),
         {"PASS_DEVICE_SPECS": "true", "MIG_STRATEGY": "mixed"}),
        (("--set", "deviceListStrategy=volume-mounts", "--set", "deviceIDStrategy=index"),
         {"DEVICE_LIST_STRATEGY": "volume-mounts", "DEVICE_ID_STRATEGY": "index"}),
        (("--set", "legacyDaemonsetAPI=true", "--set", "nvidiaDriverRoot=/"), {}),
    ],
    ids=["plain", "cpu-manager", "mig", "strategies", "old"],
)  # fmt: skip
@pytest.mark.parametrize("by", ["repository", "url"])
def test_the_helm_commands_of_guide_e(
    by: str, words: tuple[str, ...], expected: dict[str, str], repository: dict[str, str]
) -> None:
    """As written, but for the chart's name, its version and its address."""
    chart = {
        "repository": ("nvdp/nvct", f"--version={__version__}"),
        "url": (f"{repository['URL']}/nvct-{__version__}.tgz",),
    }
    command = ("install", "--generate-name", *words, *chart[by], "--dry-run=client", "-o=json")
    done = subprocess.run(
        [str(find_helm()), *command], env=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    release = json.loads(done.stdout)
    objects = objects_of(release["manifest"])
    (agent,) = (each.container for each in reach.containers(objects) if each.part == "agent")
    assert expected.items() <= env_of(agent).items()
    if "resources.requests.cpu=100m" in words:
        assert agent["resources"] == {"requests": {"cpu": "100m"}, "limits": {"memory": "512Mi"}}
    has_line = "- legacyDaemonsetAPI: " in release["info"]["notes"]
    assert has_line == ("legacyDaemonsetAPI=true" in words)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ["nvidia", "nvidia-cdi", "nvidia-legacy"]),
        ({"cdi": {"enabled": False}}, ["nvidia"]),
        (
            {"cdi": {"enabled": False}, "operator": {"runtimeClass": "gpu"}},
            ["gpu", "nvidia"],
        ),
    ],
)
def test_the_runtime_classes_are_those_of_the_operator(
    values: Mapping[str, Any], names: list[str]
) -> None:
    classes = {
        name: each["handler"]
        for (kind, name), each in rendered(values).items()
        if kind == "RuntimeClass"
    }
    assert sorted(classes) == names
    assert classes == {name: "nvidia" if name == "gpu" else name for name in names}


@pytest.mark.parametrize(
    ("values", "ignored"),
    [
        (chart_values.PLUGIN_0_9, ["failOnInitError", "namespace", "nvidiaDriverRoot", UPDATE]),
        (
            chart_values.PLUGIN_0_20,
            [UPDATE, "devicePlugin.containers", "gfd.nameOverride",
             "gfd.namespaceOverride", "gfd.securityContext", "cdi.featureFlags",
             "cdi.nvidiaHookPath", "mps.enableHostPID", "nfd"],
        ),
        (
            chart_values.GFD,
            ["failOnInitError", "namespace", UPDATE, "securityContext", "nfd",
             "node-feature-discovery"],
        ),
    ],
    ids=["plugin-0.9", "plugin-0.20", "gfd"],
)  # fmt: skip
def test_all_values_of_nvidias_charts_are_taken_and_some_named(
    values: Mapping[str, Any], ignored: list[str]
) -> None:
    named = [line.partition(":")[0] for line in ignored_with(values)]
    assert sorted(named) == sorted(ignored)


def test_each_value_of_other_charts_stands_in_the_page() -> None:
    """The page has a row for what is honored, and names what is not."""
    page = PAGE.read_text()
    tables = yaml.safe_load((CHART / "chart_values.yaml").read_text())
    named = {*tables["refused"], *tables["ignored"], *(old for old, *_ in tables["renamed"])}
    known = {*json.loads((CHART / "values.schema.json").read_text())["properties"]}
    own = {*yaml.safe_load((CHART / "values.yaml").read_text())}
    sections = {name.partition(".")[0] for name in named}
    assert not [name for name in (known - own) | sections if f"`{name}" not in page]


def test_the_schema_takes_what_the_tables_name() -> None:
    tables = yaml.safe_load((CHART / "chart_values.yaml").read_text())
    names = [*tables["refused"], *tables["ignored"], *(old for old, *_ in tables["renamed"])]
    names += [*tables["known"], *tables["own"]]
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert {name.partition(".")[0] for name in names} == {*schema}
