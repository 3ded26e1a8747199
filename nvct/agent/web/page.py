# SPDX-License-Identifier: Apache-2.0
"""JSON data as a page for browsers: tables, no script, everything escaped."""

from __future__ import annotations

from nvct.oci.jsontext import Json

KIND = "text/html; charset=utf-8"
STYLE = (
    "body{font:15px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}"
)


def page(title: str, document: Json) -> str:
    """Return a page with a title above a document."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_escaped(title)}'
        f"</title><style>{STYLE}</style></head>\n<body><h1>{_escaped(title)}</h1>\n"
        f"{_cell(document)}\n</body></html>\n"
    )


def _cell(value: Json) -> str:
    if isinstance(value, dict) and value:
        rows = (f"<tr><th>{_escaped(k)}</th><td>{_cell(v)}</td></tr>" for k, v in value.items())
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list) and value:
        if all(isinstance(row, dict) for row in value):
            return _columns([row for row in value if isinstance(row, dict)])
        return "<br>".join(_cell(member) for member in value)
    return "" if value in (None, {}, []) else _escaped(str(value))


def _columns(rows: list[dict[str, Json]]) -> str:
    """Return a table with a row for each object, and a column for each of their keys."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{_escaped(key)}</th>" for key in keys)
    lines = (
        f"<tr>{''.join(f'<td>{_cell(row.get(key))}</td>' for key in keys)}</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{''.join(lines)}</table>"


def _escaped(text: str) -> str:
    from html import escape  # its tables take half a megabyte

    return escape(text)
