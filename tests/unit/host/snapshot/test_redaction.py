# SPDX-License-Identifier: Apache-2.0
"""What goes out of texts, and what stays."""

import time

import pytest

from nvct.host.snapshot.redaction import REMOVED, Redactor, Uuids

JWT = (
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
)
SECRETS = (
    ("NGC_API_KEY=nvapi-0123456789abcdefghij", "nvapi-0123456789abcdefghij"),
    ("env: HF_TOKEN=plainword next", "plainword"),
    ('{"password": "a b c", "x": 1}', "a b c"),
    ("db.passwd: hunter2", "hunter2"),
    ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
    ("authorization=Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    (f"sent {JWT} away", JWT),
    ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    ("ghp_0123456789abcdefghijABCDEFGHIJ0123", "ghp_0123456789abcdefghij"),
    ("https://me:pa55@registry.lan/v2", "pa55"),
    ("https://oauth2@registry.lan/v2", "oauth2"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
    ("-----BEGIN PRIVATE KEY-----\nMIIabc, cut off", "MIIabc"),
    ("write to jane.doe@example.com", "jane.doe"),
    ("in /home/jane/.config", "jane"),
    ("on gpu-node-7.lab.example", "gpu-node-7"),
    ("listens on 10.31.7.4:9400", "10.31.7.4"),
    ("from fe80::1ff:fe23:4567:890a to", "fe80::1ff:fe23:4567:890a"),
    ("from 2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
    ("mac 02:42:ac:11:00:02", "02:42:ac:11:00:02"),
    ("GPU-b134a107-0d65-5ba2-bdbb-7697232ada41", "b134a107-0d65-5ba2-bdbb-7697232ada41"),
)
PLANTED = tuple(
    (form.format("hunter2x"), "hunter2x")
    for form in (
        "DB_PWD={}", "MYSQL_PWD: {}", "PGPASS={}", "DB_PASS={}", "PGPASSWORD={}",
        "passphrase: correct {} staple", "Passphrase={}", "Cookie: a=b; session={}",
        "Set-Cookie: id={}; Path=/", "cookie={}", "https://x.blob/y?sv=1&sig={}", "sig: {}",
        "X-Amz-Signature={}", "license key: AAAA {}", "LICENSE_KEY={}", "licenceKey: {}",
        "mysql --password {} -h db", "mysql --password={}", "--db-pass '{}'", "--token {}",
        "curl -u me:{} http://x", "curl -ume:{} http://x", "curl --user me:{}", "-u 'me:{}'",
        "https://me:a/{}@registry.lan/v2", "https://me:a@{}@registry.lan", "https://:{}@x",
        "SSH_KEY={}", "accountKey={}", "DSN={}",
        '{{"args": ["--password", "{}"]}}', '{{"args": ["-u", "me:{}"]}}',
        '{{"config": "{{\\"password\\": \\"{} a\\"}}"}}',
    )
)  # fmt: skip
KEPT = (
    "docker run --user 1000:1000 -u 0:0 image",
    "the bypass of compass 3: passed",
    "signal: 9, signed: yes, insignificant=1",
    "https://x.y:8443/metrics?a=b",
    "no pass; passthrough = 1",
    "monkey: 1, keyboard=us",
    "GPU 0000:18:00.0: XID 79 (GPU has fallen off the bus), 4 min ago",
    "NVRM: Xid (PCI:0000:18:00): 79, pid=1234",
    "libnvidia-ml.so.580.159.04, driver 580.159.04, kernel 6.8.0-50-generic",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1, /dev/nvidia0, mode 0444",
    "listens on 127.0.0.1:9400 and [::1]",
    "nvidia.com/gpu=0, 16 GPUs, CVE-2025-23266",
    "author = nobody",
    "layout = 'farm'",
)


def redactor() -> Redactor:
    return Redactor(["gpu-node-7.lab.example", "gpu-node-7", "localhost", "root", ""])


@pytest.mark.parametrize(("text", "secret"), [*SECRETS, *PLANTED], ids=lambda value: value[:30])
def test_a_secret_is_gone(text: str, secret: str) -> None:
    assert secret not in redactor().text(text)


@pytest.mark.parametrize("text", KEPT, ids=lambda value: value[:12])
def test_what_a_reader_needs_stays(text: str) -> None:
    assert redactor().text(text) == text


def test_the_same_address_gets_the_same_word() -> None:
    text = redactor().text("10.0.0.1 to 10.0.0.2 and back to 10.0.0.1")

    assert text == "(address 1) to (address 2) and back to (address 1)"


def test_the_value_of_a_secret_key_goes_as_a_whole() -> None:
    value = {"tokens": ["a", {"b": "c"}], "secret": "", "env": ["A_TOKEN=x"], "n": [1, None, True]}

    assert redactor().value(value) == {
        "tokens": REMOVED,
        "secret": "",
        "env": [f"A_TOKEN={REMOVED}"],
        "n": [1, None, True],
    }


@pytest.mark.parametrize("part", ["a", "://", "-u a:", "--token-", "cookie:", "a.a@a.", '\\\\"'])
def test_a_long_text_takes_time_by_its_length(part: str) -> None:
    began = time.process_time()
    redactor().text(part * (100_000 // len(part)))
    assert time.process_time() - began < 5


def test_the_word_after_an_option_of_a_secret_goes() -> None:
    words = ["mysql", "--password", "a b c", "-u", "me:x y", "--host", "db", "--pwd=z", "kept"]

    assert redactor().value(words) == [
        "mysql", "--password", REMOVED, "-u", REMOVED, "--host", "db", f"--pwd={REMOVED}", "kept",
    ]  # fmt: skip


def test_a_uuid_is_replaced_as_elsewhere() -> None:
    uuids = Uuids()
    first = uuids("GPU-B134A107-0d65-5ba2-bdbb-7697232ada41")

    assert Redactor(uuids=uuids).text("GPU-b134a107-0d65-5ba2-bdbb-7697232ada41") == first
