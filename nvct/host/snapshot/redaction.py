# SPDX-License-Identifier: Apache-2.0
"""Replaces UUIDs, names, addresses and secrets in text.

A UUID or address is replaced by the same invented word in every place, so that a reader still sees
which are equal. Contract: a secret is recognized by its form or by the name before it. One that
looks like a plain word stays, so a record must not contain more than it needs.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any

HEX = "[0-9a-fA-F]"
UUID = re.compile(rf"\b{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}\b")
REMOVED = "(removed)"
NAMES = (
    r"token|secret|passw|passphrase|pass(?![a-z])|pwd|credential|cookie|signature"
    r"|(?<![a-z])sig(?![a-z])|auth(?!or)|connection[-_]?string|(?<![a-z])dsn(?![a-z])"
    r"|(?:api|access|account|private|licen[cs]e|master|signing|encryption|ssh)[-_]?key"
)
"""Parts of the name of a variable, key or option whose value is a secret."""
QUOTE = r"""(?: \\? ["'] )"""  # with a backslash if the JSON is itself a string in JSON
VALUE = r"""(?: \\"(?:[^"\\]|\\(?!"))*\\" | "[^"]*" | '[^']*' | [^\s,;"'}\]\\]+ )"""
ASSIGNED = re.compile(
    rf"""(?ix)( (?:{NAMES}) [\w.-]{{0,80}} {QUOTE}? \s{{0,9}} [=:] \s{{0,9}} )
    ( (?:bearer|basic)\s+\S+ | {VALUE} )"""
)
"""NAME=VALUE and "name": "value", where the name contains one of NAMES. Repeats before the value
have limits: without them, the time would grow with the square of a text's length."""
PHRASES = re.compile(
    r"""(?i)((?:passphrase|licen[cs]e[-_ ]key|\b(?:set-)?cookie)"""
    r"""[^\S\r\n]{0,9}[=:][^\S\r\n]{0,9})(?!["'])([^"'\r\n]+)"""
)
"""Values of several words, to the end of the line."""
OPTION = re.compile(
    rf"""(?ix)( (?<![\w-]) --? [\w-]{{0,80}} (?:{NAMES}) [\w-]{{0,80}} {QUOTE}? [\s,]{{1,9}} )
    ( (?!-) {VALUE} )"""
)
"""--password VALUE, in a command line or a list of words."""
OPTIONS = r"-u|-U|--user|--proxy-user"
LOGIN = re.compile(
    rf"""(?x)( (?<![\w-]) (?:{OPTIONS}) {QUOTE}? [\s,=]{{0,9}} {QUOTE}? )
    (?!\d{{1,10}}:\d{{1,10}}\b) [\w.@+-]{{1,80}} : [^\s"'\\]+"""
)
"""-u NAME:PASSWORD, as curl takes it, but not UID:GID."""
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
KEYS = re.compile(
    r"\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*"  # JSON Web Token, RFC 7519
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[a-z]_\w{20,}|\bglpat-[\w-]{16,}|\bnvapi-[\w-]{16,}"
    r"|\bxox[a-z]-[\w-]{10,}|\bhf_\w{20,}|\bsk-[\w-]{20,}"
)
"""Keys of AWS, GitHub, GitLab, NGC, Slack, Hugging Face, OpenAI."""
PEM = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL)
URL_USER = re.compile(r"""(?<=://)(?:[^\s/@:"'<>]{0,80}:[^\s"'<>]{0,200}|[^\s/@:]{1,80})@""")
"""NAME:PASSWORD in a URL; a person can write any character into the password, unescaped."""
MAIL = re.compile(r"[\w.+-]{1,80}@[\w-]{1,80}(?:\.[\w-]{1,80})+")
HOME = re.compile(r"(?<=/home/)[^/\s\"':]+")
MAC = re.compile(rf"\b(?:{HEX}{{2}}:){{5}}{HEX}{{2}}\b")
IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)")
IPV6 = re.compile(rf"(?<![\w.:])(?:{HEX}{{0,4}}:){{2,7}}{HEX}{{0,4}}(?![\w:])")
KEPT = ("127.0.0.1", "0.0.0.0", "::1", "::")  # noqa: S104 - no socket is bound


class Uuids:
    """Replaces each UUID by an invented one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return a text with each UUID replaced."""
        return UUID.sub(self._invented, text)

    def _invented(self, match: re.Match[str]) -> str:
        # Counted, not hashed: a hash would confirm a known UUID.
        return self._known.setdefault(
            match[0].lower(), f"{len(self._known) + 1:08x}-0000-4000-8000-{0:012x}"
        )


class Redactor:
    """Replaces UUIDs, names of host and users, addresses and secrets."""

    def __init__(self, names: Sequence[str] = (), uuids: Uuids | None = None) -> None:
        # "localhost" and "root" reveal nothing, and are parts of paths.
        private = {name for name in names if len(name) > 1 and name not in ("localhost", "root")}
        longest_first = sorted(private, key=len, reverse=True)
        words = "|".join(map(re.escape, longest_first))
        self._own = re.compile(rf"(?<![\w]){'(?:' + words + ')'}(?![\w])") if words else None
        self._uuids = uuids or Uuids()
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return a text with all of these replaced."""
        text = PEM.sub(REMOVED, text)
        for form in (PHRASES, ASSIGNED, OPTION, LOGIN):
            text = form.sub(lambda match: f"{match[1]}{REMOVED}", text)
        text = BEARER.sub(lambda match: f"{match[1]} {REMOVED}", text)
        text = KEYS.sub(REMOVED, text)
        text = URL_USER.sub(f"{REMOVED}@", text)
        text = MAIL.sub("(mail)", text)
        text = HOME.sub("user", text)
        text = self._uuids(text)
        for form in (MAC, IPV4, IPV6):
            text = form.sub(self._address, text)
        return self._own.sub("(name)", text) if self._own else text

    def value(self, value: Any) -> Any:  # noqa: ANN401 - any JSON
        """Return JSON data with all of these replaced; the value of a secret's key is removed."""
        return cleaned(value, self.text, is_secret=_is_secret)

    def _address(self, match: re.Match[str]) -> str:
        if match[0] in KEPT or not _is_address(match[0]):
            return match[0]
        return self._known.setdefault(match[0].lower(), f"(address {len(self._known) + 1})")


def cleaned(
    value: Any,  # noqa: ANN401 - any JSON
    clean: Callable[[str], str],
    is_secret: Callable[[str], bool] = lambda _: False,
) -> Any:  # noqa: ANN401
    """Return JSON data with its strings cleaned, values of secrets removed, and keys sorted."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {
            clean(key): REMOVED
            if is_secret(key) and value[key]
            else cleaned(value[key], clean, is_secret)
            for key in sorted(value)
        }
    if isinstance(value, (list, tuple)):
        before = ["", *value]
        return [
            REMOVED
            if isinstance(item, str) and _is_option(option) and is_secret(option)
            else cleaned(item, clean, is_secret)
            for option, item in zip(before, value, strict=False)
        ]
    return value


def _is_option(word: object) -> bool:
    """Return whether a word of a command line is an option whose value is the next word."""
    return isinstance(word, str) and word.startswith("-") and "=" not in word


def _is_secret(key: str) -> bool:
    return bool(re.search(NAMES, key, re.IGNORECASE)) or key in OPTIONS.split("|")


def _is_address(text: str) -> bool:
    if MAC.fullmatch(text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
