# SPDX-License-Identifier: Apache-2.0
"""Web configurations: what is accepted, refused with a sentence, and how a server follows them."""

import asyncio
import contextlib
import io
import re
import shutil
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import bcrypt
import pytest

from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.exporter import task as exporter
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.web import config as web_config
from nvct.agent.web import guard as web_guard
from nvct.agent.web import http, turns
from nvct.agent.web.guard import WebGuard
from nvct.agent.web.http import Answer, Server
from nvct.errors import DocumentError
from tests.monitoring.prometheus import promtool

TIMEOUT_S = 20.0
HASH = bcrypt.hashpw(b"secret", b"$2b$04$" + b"a" * 21 + b".").decode()  # in the ids of tests
USERS = f"basic_auth_users: {{alice: '{HASH}'}}\n"
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the certificates of two servers and a client, each its own CA."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is missing")
    folder = tmp_path_factory.mktemp("certificates")
    for name, alt in (("server", "IP:127.0.0.1"), ("other", "IP:127.0.0.1"), ("client", "DNS:p")):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "30", "-subj", f"/CN={name}", "-addext", f"subjectAltName={alt}",
             "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    return folder


def write(folder: Path, text: str) -> str:
    path = folder / "web.yaml"
    path.write_text(text)
    return str(path)


SUITES = (
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", "TLS_AES_128_GCM_SHA256",
)  # fmt: skip
GOOD = (
    "",
    "tls_server_config:\n",
    USERS,
    f"{TLS}}}",
    f"{TLS}, min_version: TLS13, max_version: TLS13}}",
    f"{TLS}, cipher_suites: [{', '.join(SUITES)}]}}",
    f"{TLS}, curve_preferences: [CurveP256], prefer_server_cipher_suites: false}}",
    f"{TLS}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: client.pem}}",
    f"{TLS}, client_auth_type: VerifyClientCertIfGiven, client_ca_file: client.pem}}",
    f"{TLS}, client_auth_type: VerifyClientCertIfGiven}}",
    f"{TLS}}}\nhttp_server_config: {{http2: false, headers: {{X-Frame-Options: deny}}}}",
    "http_server_config: {headers: {X-XSS-Protection: 1}}",
)
BAD = {
    "junk": "is not a table",
    "junk: 1": "unknown key 'junk'",
    "tls_server_config: {junk: 1}": "unknown key tls_server_config.junk",
    "tls_server_config: {cert_file: [a]}": "tls_server_config.cert_file has the wrong type",
    "tls_server_config: {cert_file: server.pem}": "set either key or key_file",
    "tls_server_config: {key_file: server.key}": "set either cert or cert_file",
    "tls_server_config: {cert_file: no, key_file: server.key}": "wrong type",
    "tls_server_config: {cert_file: none, key_file: server.key}": "none: No such file",
    "tls_server_config: {cert_file: server.pem, key_file: other.key}": "cannot be used: ",
    "tls_server_config: {cert_file: web.yaml, key_file: server.key}": "cannot be used: ",
    f"{TLS}, client_auth_type: Maybe}}": "client_auth_type 'Maybe' is not supported",
    f"{TLS}, client_ca_file: client.pem}}": "client_ca_file and client_auth_type belong together",
    f"{TLS}, min_version: TLS14}}": "unknown min_version 'TLS14'",
    f"{TLS}, cipher_suites: [TLS_MADE_UP]}}": "unknown cipher suite 'TLS_MADE_UP'",
    f"{TLS}, curve_preferences: [CurveP1]}}": "unknown curve 'CurveP1'",
    "basic_auth_users: {alice: secret}": "the password of 'alice' is not a bcrypt hash",
    "http_server_config: {headers: {X-Frame-Options: allow}}": "must be deny or sameorigin",
    "http_server_config: {headers: {X-Other: a}}": "the header 'X-Other' cannot be set",
    "a: 1\na: 2": "malformed in line 2: duplicate key a",
}
OURS = {
    f"{TLS}, client_auth_type: RequireAndVerifyClientCert}}": "belong together",
    f"{TLS}, client_auth_type: RequireAnyClientCert}}": "not supported",
    f"{TLS}, min_version: TLS13, max_version: TLS12}}": "min_version is above max_version",
    f"{TLS}, curve_preferences: [CurveP256, X25519]}}": "curve_preferences can have only one curve",
    'http_server_config: {headers: {X-XSS-Protection: "a\\r\\nb"}}': "is malformed",
    "rate_limit: {interval: 1s}": "rate_limit.burst must be 1 or more",
    "rate_limit: {interval: soon, burst: 1}": "rate_limit.interval 'soon' is malformed",
    f"{TLS}, client_allowed_sans: [p]}}": "client_allowed_sans needs RequireAndVerifyClientCert",
}
"""Refused by nvct alone: what would not protect, or was not known to Prometheus 2.42."""


@pytest.mark.parametrize("text", GOOD)
def test_what_prometheus_accepts_is_accepted(text: str, certificates: Path) -> None:
    path = write(certificates, text)

    config = web_config.read(path)

    assert (config.tls is not None) is text.startswith(TLS)
    assert promtool("check", "web-config", path).returncode == 0


@pytest.mark.parametrize("text", BAD)
def test_what_prometheus_refuses_is_refused_with_a_sentence(text: str, certificates: Path) -> None:
    path = write(certificates, text)

    with pytest.raises(DocumentError, match=re.escape(BAD[text])):
        web_config.read(path)
    assert promtool("check", "web-config", path).returncode != 0


@pytest.mark.parametrize("text", OURS)
def test_more_is_refused_than_by_prometheus(text: str, certificates: Path) -> None:
    with pytest.raises(DocumentError, match=re.escape(OURS[text])):
        web_config.read(write(certificates, text))


def test_certificate_and_key_may_stand_in_the_file(certificates: Path) -> None:
    def indented(name: str) -> str:
        return "".join(f"    {line}\n" for line in (certificates / name).read_text().splitlines())

    text = f"tls_server_config:\n  cert: |\n{indented('server.pem')}"
    path = write(certificates, f"{text}  key: |\n{indented('server.key')}")

    assert web_config.read(path).tls is not None


@contextlib.asynccontextmanager
async def served(
    folder: Path, text: str, log: io.StringIO | None = None, body: str = "ok\n"
) -> AsyncIterator[int]:
    """Serve with a configuration, and yield the port."""
    guard = WebGuard(write(folder, text), Log(target=log or io.StringIO()))
    server = Server(lambda _: Answer(200, body), guard)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.close()


def client(folder: Path, *, ca: str = "server.pem", certificate: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / ca)
    if certificate:
        context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    return context


async def get(port: int, tls: ssl.SSLContext | None = None, user: str = "") -> str:
    """Return the whole answer; "" if the server ends the connection."""
    secret = f"Authorization: Basic {b64encode(user.encode()).decode()}\r\n" if user else ""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{secret}\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
    except (ConnectionError, ssl.SSLError):
        return ""
    writer.transport.abort()
    return answer.decode()


async def test_tls_is_served_and_plain_http_is_not(certificates: Path) -> None:
    async with served(certificates, f"{TLS}}}") as port:
        assert (await get(port, client(certificates))).endswith("\r\n\r\nok\n")
        assert await get(port) == ""
        assert await get(port, client(certificates, ca="other.pem")) == ""


async def test_a_large_answer_arrives_whole_by_tls(certificates: Path) -> None:
    body = "x" * 3_000_000
    async with served(certificates, f"{TLS}}}", body=body) as port:
        answer = await get(port, client(certificates))
    assert answer.partition("\r\n\r\n")[2] == body


async def test_only_users_get_an_answer(certificates: Path) -> None:
    async with served(certificates, USERS) as port:
        assert (await get(port, user="alice:secret")).startswith("HTTP/1.0 200")
        users = (
            "",
            "alice:Secret",
            "alice",
            "bob:secret",
            "bob:fakepassword",
            ":",
            "a:" + "b" * 90,
        )
        for user in users:
            answer = await get(port, user=user)
            assert answer.startswith("HTTP/1.0 401"), user
            assert "\r\nWWW-Authenticate: Basic\r\n" in answer


async def test_a_client_needs_a_certificate_of_the_ca_and_with_the_name(
    certificates: Path,
) -> None:
    auth = f"{TLS}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: client.pem"

    async with served(certificates, f"{auth}, client_allowed_sans: [p, q]}}") as port:
        assert "200" in await get(port, client(certificates, certificate="client"))
        assert await get(port, client(certificates)) == ""
        assert await get(port, client(certificates, certificate="other")) == ""

    async with served(certificates, f"{auth}, client_allowed_sans: [q]}}") as port:
        assert await get(port, client(certificates, certificate="client")) == ""


async def test_headers_and_the_limit_of_requests_hold(certificates: Path) -> None:
    headers = (
        "http_server_config: {headers: {X-Frame-Options: deny, X-Content-Type-Options: nosniff}}"
    )

    async with served(certificates, f"{headers}\nrate_limit: {{interval: 1h, burst: 2}}") as port:
        answers = [await get(port) for _ in range(3)]
        assert [answer.split()[1] for answer in answers] == ["200", "200", "429"]
        assert "\r\nX-Frame-Options: deny\r\n" in answers[0]
        assert answers[0].count("X-Content-Type-Options") == 1


async def test_a_changed_file_is_read_and_a_wrong_one_is_not(
    certificates: Path, tmp_path: Path
) -> None:
    for name in ("server", "other"):
        for end in ("pem", "key"):
            shutil.copy(certificates / f"{name}.{end}", tmp_path)
    log = io.StringIO()

    async with served(tmp_path, f"{TLS}}}", log=log) as port:
        old, new = client(certificates), client(certificates, ca="other.pem")
        assert "200" in await get(port, old)
        shutil.copy(tmp_path / "other.pem", tmp_path / "server.pem")
        assert "200" in await get(port, old), "half of a new pair is no pair"
        shutil.copy(tmp_path / "other.key", tmp_path / "server.key")
        assert "200" in await get(port, new)
        write(tmp_path, f"{TLS}}}\n{USERS}")
        assert "401" in await get(port, new)
        write(tmp_path, f"{USERS}\n")
        assert "401" in await get(port, new), "still by TLS"
    said = log.getvalue()
    assert said.count("read the web configuration again") == 2
    assert said.count("cannot be used") == 1
    assert "switches TLS on or off, which needs a restart: the former" in said


async def test_a_crowd_of_unfinished_handshakes_leaves_room(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS", 8)

    async with served(certificates, f"{TLS}}}") as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        assert "200" in await get(port, client(certificates))
        for _, writer in idle:
            writer.transport.abort()


def hello() -> bytes:
    """Return how a client begins a handshake."""
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def test_a_flood_of_handshakes_from_one_address_keeps_no_other_client_out(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS", 16)

    async with served(certificates, f"{TLS}}}") as port:
        flood, data = list[asyncio.StreamWriter](), hello()

        async def pour() -> None:
            while True:
                address = ("127.0.0.2", 0)
                _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=address)
                writer.write(data)
                flood.append(writer)
                await asyncio.sleep(1 / 300)

        pouring = asyncio.create_task(pour())
        await asyncio.sleep(0.5)
        answers = [await get(port, client(certificates)) for _ in range(10)]
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        assert [answer[9:12] for answer in answers] == ["200"] * 10
        for writer in flood:
            writer.transport.abort()
        await asyncio.sleep(0.2)  # the server learns of their ends


async def test_a_crowd_of_handshakes_costs_a_bounded_part_of_the_time(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HANDSHAKES", 5)

    async with served(certificates, f"{TLS}}}") as port:
        began = time.monotonic()
        answers = await asyncio.gather(*(get(port, client(certificates)) for _ in range(4)))
        assert {answer[9:12] for answer in answers} == {"200"}
        assert time.monotonic() - began >= 3 / 5


async def test_a_flood_of_wrong_passwords_keeps_no_other_client_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def is_right(password: bytes, _: str) -> bool:
        compared.append(password)
        return password == b"secret"

    monkeypatch.setattr(web_guard, "_is_right", is_right)
    monkeypatch.setattr(web_guard, "CACHED", 3)
    guard = WebGuard(write(tmp_path, USERS), Log(target=io.StringIO()))

    async def ask(user: str, client: str) -> bool:
        return await guard.is_user(f"Basic {b64encode(user.encode()).decode()}", client)

    flood = [asyncio.create_task(ask(f"alice:{n}", "10.0.0.9")) for n in range(100)]
    await asyncio.sleep(0)
    assert await ask("alice:secret", "10.0.0.1"), "a new password waits for its turn"
    assert len(compared) <= 3
    for task in flood[:50]:  # their connections have ended
        task.cancel()
    assert not any(await asyncio.gather(*flood[50:]))
    assert await ask("alice:secret", "10.0.0.1")
    assert not await ask("alice:100", "10.0.0.9")

    assert compared.count(b"secret") == 1


async def test_whoever_has_no_password_does_not_use_up_the_limit_of_requests(
    certificates: Path,
) -> None:
    async with served(certificates, f"{USERS}rate_limit: {{interval: 1h, burst: 1}}") as port:
        for _ in range(3):
            assert "401" in await get(port, user="alice:wrong")
        assert "200" in await get(port, user="alice:secret")


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("10.1.2.3", 4711), "10.1.2.3"),
        (("::ffff:10.1.2.3", 4711, 0, 0), "10.1.2.3"),
        (("fd00:1:2:3:4:5:6:7", 4711, 0, 0), "fd00:1:2:3::/64"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_an_address_is_a_client_and_so_is_a_network_of_ipv6(peer: object, client: str) -> None:
    assert turns.client_of(peer) == client


async def test_the_end_of_a_client_in_the_handshake_is_no_error(certificates: Path) -> None:
    log = io.StringIO()

    async with served(certificates, f"{TLS}}}", log=log) as port:
        hello, plain = b"\x16\x03\x01", b"GET / HTTP/1.0\r\n\r\n"
        for data in (b"", hello, plain, hello + b"\x02\x00" + b"\1" * 600):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            await writer.drain()
            writer.close()
        assert "200" in await get(port, client(certificates))
    assert log.getvalue() == ""


def test_the_exporter_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    words = ("--web-config-file", write(tmp_path, "basic_auth_users: {alice: secret}"))
    context = Context(words=words, env={}, client=NvmlClient(None), journal=Log())
    with pytest.raises(DocumentError, match="the password of 'alice' is not a bcrypt hash"):
        exporter.make(context)
