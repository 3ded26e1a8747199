# SPDX-License-Identifier: Apache-2.0
"""Reads a web configuration: TLS, users and headers of an HTTP server.

The format is that of Prometheus' exporter-toolkit, which its exporters and NVIDIA's read
(github.com/prometheus/exporter-toolkit, docs/web-configuration.md, 2026-07). Unlike
exporter-toolkit, this always verifies a client certificate that it asks for.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvct.agent.core import yaml_file
from nvct.agent.core.settings import duration_s
from nvct.errors import DocumentError, UsageError

WHAT = "the web configuration"
TEXT, SWITCH, LIST = (str,), (bool,), (list,)
TLS_KEYS: dict[str, tuple[type, ...]] = {
    "cert": TEXT, "key": TEXT, "client_ca": TEXT, "cert_file": TEXT, "key_file": TEXT,
    "client_ca_file": TEXT, "client_auth_type": TEXT, "min_version": TEXT, "max_version": TEXT,
    "client_allowed_sans": LIST, "cipher_suites": LIST, "curve_preferences": LIST,
    "prefer_server_cipher_suites": SWITCH,
}  # fmt: skip
KEYS: dict[str, dict[str, tuple[type, ...]]] = {
    "tls_server_config": TLS_KEYS,
    "http_server_config": {"http2": SWITCH, "headers": (dict,)},
    "basic_auth_users": {},
    "rate_limit": {"interval": (str, int), "burst": (int,)},
}
HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""The headers that may be set, and their values where only some are allowed."""
VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1, "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3,
}  # fmt: skip
CLIENT_AUTH = {
    "": ssl.CERT_NONE, "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}  # fmt: skip
CURVES = {
    "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1",
    "X25519": "X25519",
}  # fmt: skip
SUITE = re.compile(r"TLS_ECDHE_(RSA|ECDSA)_WITH_(AES_\d+_GCM_SHA\d+|AES_\d+_CBC_SHA|CHACHA20_POLY1305)(?:_SHA256)?")  # fmt: skip  # noqa: E501
SUITES_1_3 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Always offered with TLS 1.3, as by Go."""
BCRYPT = re.compile(r"\$2[abxy]?\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """TLS, users, headers and rate limit of a server."""

    tls: ssl.SSLContext | None = None
    # a client's certificate must have one of these names; empty for any
    sans: frozenset[str] = frozenset()
    # bcrypt hashes of passwords by user; empty if everybody may ask
    users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    interval_s: float = 0.0  # between two requests in the long run; 0 for no limit
    burst: int = 0
    files: tuple[str, ...] = ()  # the sources: a change of one makes this out of date


def read(path: str) -> WebConfig:
    """Return the configuration in a file and the files it names; DocumentError if one is wrong."""
    document = yaml_file.load(path, WHAT)
    tables = _tables({} if document is None else document, path)
    tls, rate = tables["tls_server_config"], tables["rate_limit"]
    if rate.get("interval") and rate.get("burst", 0) < 1:
        raise DocumentError(f"{WHAT} {path}: rate_limit.burst must be 1 or more")
    folder = os.path.dirname(path)
    for name in ("cert_file", "key_file", "client_ca_file"):
        if tls.get(name):
            tls[name] = os.path.join(folder, tls[name])
    named = [tls[name] for name in ("cert_file", "key_file", "client_ca_file") if tls.get(name)]
    return WebConfig(
        tls=_context(tls, path),
        sans=frozenset(_texts(tls, "client_allowed_sans", path)),
        users=_users(tables["basic_auth_users"], path),
        headers=_headers(tables["http_server_config"].get("headers") or {}, path),
        interval_s=_interval(rate.get("interval", 0), path),
        burst=rate.get("burst", 0),
        files=(path, *named),
    )


def _tables(document: object, path: str) -> dict[str, dict[str, Any]]:
    if not isinstance(document, dict):
        raise DocumentError(f"{WHAT} {path} is not a table")
    tables: dict[str, dict[str, Any]] = {name: {} for name in KEYS}
    for name, table in document.items():
        if name not in KEYS:
            raise DocumentError(f"{WHAT} {path}: unknown key {name!r}")
        if table is None:
            continue
        if not isinstance(table, dict):
            raise DocumentError(f"{WHAT} {path}: {name} is not a table")
        keys = KEYS[name]
        for key, value in table.items() if keys else ():  # a user can have any name
            if key not in keys:
                raise DocumentError(f"{WHAT} {path}: unknown key {name}.{key}")
            if value is not None and type(value) not in keys[key]:
                raise DocumentError(f"{WHAT} {path}: {name}.{key} has the wrong type")
        tables[name] = {key: value for key, value in table.items() if value is not None}
    return tables


def _context(tls: Mapping[str, Any], path: str) -> ssl.SSLContext | None:
    """Return the context of TLS, None if it is not configured."""
    asked = ("cert", "key", "cert_file", "key_file", "client_ca", "client_ca_file")
    if not any(tls.get(name) for name in (*asked, "client_auth_type")):
        return None
    for name in ("cert", "key"):
        if bool(tls.get(name)) is bool(tls.get(f"{name}_file")):
            raise DocumentError(f"{WHAT} {path}: set either {name} or {name}_file")
    auth = tls.get("client_auth_type", "")
    if auth not in CLIENT_AUTH:
        raise DocumentError(
            f"{WHAT} {path}: client_auth_type {auth!r} is not supported",
            hint=f"one of {', '.join(filter(None, CLIENT_AUTH))}",
        )
    has_ca = bool(tls.get("client_ca") or tls.get("client_ca_file"))
    verifies = CLIENT_AUTH[auth] != ssl.CERT_NONE
    if has_ca is not verifies and CLIENT_AUTH[auth] != ssl.CERT_OPTIONAL:
        raise DocumentError(
            f"{WHAT} {path}: client_ca_file and client_auth_type belong together",
            hint="client_auth_type: RequireAndVerifyClientCert",
        )
    if tls.get("client_allowed_sans") and CLIENT_AUTH[auth] != ssl.CERT_REQUIRED:
        raise DocumentError(f"{WHAT} {path}: client_allowed_sans needs RequireAndVerifyClientCert")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        _restrict(context, tls, path)
        with _as_file(tls, "cert") as cert, _as_file(tls, "key") as key:
            context.load_cert_chain(cert, key, password=lambda: b"")  # no prompt
        if has_ca:
            with _as_file(tls, "client_ca") as authority:
                context.load_verify_locations(authority)
        elif verifies:  # by the system's CA certificates, as Go does
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = CLIENT_AUTH[auth]
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        raise DocumentError(
            f"{WHAT} {path}: certificate, key or CA cannot be used: {reason}"
        ) from error
    except OSError as error:
        missing = ", ".join(n for n in map(str, tls.values()) if n.startswith("/") and not os.access(n, os.R_OK))  # noqa: E501  # fmt: skip
        raise DocumentError(f"{WHAT} {path}: {missing}: {error.strerror}") from error
    return context


def _restrict(context: ssl.SSLContext, tls: Mapping[str, Any], path: str) -> None:
    """Set versions, cipher suites and curves."""
    for key, otherwise in (("min_version", "TLS12"), ("max_version", "TLS13")):
        name = tls.get(key, otherwise)
        if name not in VERSIONS:
            raise DocumentError(f"{WHAT} {path}: unknown {key} {name!r}", hint="such as TLS12")
    context.minimum_version = VERSIONS[tls.get("min_version", "TLS12")]
    context.maximum_version = VERSIONS[tls.get("max_version", "TLS13")]
    if context.minimum_version > context.maximum_version:
        raise DocumentError(f"{WHAT} {path}: min_version is above max_version")
    suites = _texts(tls, "cipher_suites", path)
    names = [_openssl_suite(name, path) for name in suites if name not in SUITES_1_3]
    if names:
        context.set_ciphers(":".join(names))
    curves = _texts(tls, "curve_preferences", path)
    for name in curves:
        if name not in CURVES:
            raise DocumentError(f"{WHAT} {path}: unknown curve {name!r}")
    if len(curves) == 1:
        context.set_ecdh_curve(CURVES[curves[0]])
    elif curves:
        raise DocumentError(f"{WHAT} {path}: curve_preferences can have only one curve")


def _openssl_suite(name: str, path: str) -> str:
    match = SUITE.fullmatch(name)
    if not match:
        raise DocumentError(f"{WHAT} {path}: unknown cipher suite {name!r}")
    cipher = match[2].replace("AES_", "AES").replace("_CBC", "").replace("_", "-")
    if match[2].endswith("_CBC_SHA") and name.endswith("_SHA256"):
        cipher += "256"
    return f"ECDHE-{match[1]}-{cipher}"


@contextlib.contextmanager
def _as_file(tls: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the path of a file with a certificate or key that the configuration has or names."""
    if path := tls.get(f"{name}_file"):
        yield path
        return
    number = os.memfd_create("nvct-web-config")
    try:
        os.write(number, tls[name].encode())
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _users(users: Mapping[str, Any], path: str) -> dict[str, str]:
    for name, value in users.items():
        if not (isinstance(value, str) and BCRYPT.fullmatch(value)):
            raise DocumentError(
                f"{WHAT} {path}: the password of {name!r} is not a bcrypt hash",
                hint="htpasswd -nBC 10 '' makes one",
            )
    return dict(users)


def _headers(headers: Mapping[str, Any], path: str) -> dict[str, str]:
    for name, value in headers.items():
        if name not in HEADERS:
            raise DocumentError(f"{WHAT} {path}: the header {name!r} cannot be set")
        value = str(value) if type(value) is int else value  # X-XSS-Protection: 1
        if not isinstance(value, str) or not value.isprintable() or not value.isascii():
            raise DocumentError(f"{WHAT} {path}: the value of header {name} is malformed")
        if HEADERS[name] and value not in HEADERS[name]:
            allowed = " or ".join(HEADERS[name])
            raise DocumentError(f"{WHAT} {path}: header {name} must be {allowed}, not {value!r}")
    return {name: str(value) for name, value in headers.items()}


def _interval(value: str | int, path: str) -> float:
    try:
        return duration_s(str(value))
    except UsageError as error:
        raise DocumentError(
            f"{WHAT} {path}: rate_limit.interval {value!r} is malformed"
        ) from error


def _texts(table: Mapping[str, Any], key: str, path: str) -> list[str]:
    values = table.get(key) or []
    if not all(isinstance(value, str) for value in values):
        raise DocumentError(f"{WHAT} {path}: {key} is not a list of strings")
    return values
