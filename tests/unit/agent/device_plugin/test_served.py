# SPDX-License-Identifier: Apache-2.0
"""Resources that go and come back."""

import asyncio
import io
import tempfile

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import registration
from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.served import ServedResources
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet, until
from tests.unit.agent.device_plugin.test_registration import HEALTHY, content


@pytest.mark.parametrize("is_over", [False, True], ids=["in time", "too late"])
def test_a_resource_that_comes_back_is_offered_again(
    monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    monkeypatch.setattr(registration, "WITHDRAWN_S", 0.2 if is_over else 60)

    async def run(folder: str) -> None:
        kubelet = FakeKubelet(folder)
        await kubelet.start()
        served = ServedResources(Log(target=io.StringIO()), Counts())
        watch = asyncio.create_task(served.watch())
        gpus = content(kubelet_socket=kubelet.socket)
        for _ in range(3):
            served.offer([gpus])
            await until(lambda: kubelet.lists.get(GPU) == HEALTHY)
            served.offer([])
            await until(lambda: not kubelet.lists.get(GPU))
            assert served.current == {}
            if is_over:
                await until(lambda: not served.all)
        # Too late, the end of the older stream may make the kubelet drop the newer registration.
        assert len(kubelet.registered) >= 3 if is_over else len(kubelet.registered) == 1
        watch.cancel()
        await served.stop()
        await kubelet.stop()

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        asyncio.run(run(folder))
