# SPDX-License-Identifier: Apache-2.0
"""The archive: the byte code of all modules of the hot side in one file, for fast imports.

Cold, but with the standard library only: the interpreter of the hot side runs it, because byte
code depends on the interpreter. Importing 30 modules from files costs 5 ms, from the archive 2 ms.
Code without effect at run time is removed: docstrings, annotations, TYPE_CHECKING blocks and `from
__future__ import annotations`, a module that costs 0.4 ms. Line numbers stay for tracebacks.

The file contains the interpreter's magic number for byte code; the length of the head, 4 bytes,
little endian; the head, a marshalled tuple (code of `nvct.launcher.finder`, arguments of its
`install`); and the code of each module. Only imported modules are read; the file has 300 KB. The
finder compares each source with its size and time in the archive, and the launchers refuse an
archive of another owner.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import marshal
import os
import sys
from pathlib import Path
from types import CodeType

from nvct.linux.files import write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.launcher.finder import Module

ENTRIES = ("nvct.container.shim", "nvct.container.cdi_hook", "nvct.container.prestart")
"""All modules of these packages and their imports are hot."""
FINDER = "nvct.launcher.finder"
LENGTH_SIZE = 4  # Bytes of the head's length; also in the boot code of the launchers


class _Strip(ast.NodeTransformer):
    """Removes code without effect at run time."""

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body = body[1:]
        statements: list[ast.stmt] = []
        for statement in body:
            visited = self.visit(statement)
            statements += [visited] if isinstance(visited, ast.stmt) else visited or []
        return statements or [ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)]

    def visit_Module(self, node: ast.Module) -> ast.Module:
        node.body = self._body(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = self._body(node.body)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.visit(node.args)
        node.body = self._body(node.body)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse
        self.generic_visit(node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        return None if node.module == "__future__" else node


class _Source:
    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = str(path)
        self.is_package = path.name == "__init__.py"
        status = path.stat()  # before reading, so a later change makes the archive stale
        self.size, self.mtime_ns = status.st_size, status.st_mtime_ns
        self.text = path.read_bytes()
        self.tree = _Strip().visit(ast.parse(self.text, self.path))

    def imports(self, *, at_once: bool) -> list[str]:
        """Return the distinct imported names, in order; `at_once`: without those in functions."""
        names: dict[str, None] = {}
        for node in self.tree.body if at_once else ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names.update(dict.fromkeys(alias.name for alias in node.names))
            elif isinstance(node, ast.ImportFrom) and node.module:
                names[node.module] = None
                names.update(dict.fromkeys(f"{node.module}.{a.name}" for a in node.names))
        return list(names)

    def code(self) -> CodeType:
        """Compile the module, without the future flags of this file."""
        return compile(self.tree, self.path, "exec", dont_inherit=True)


def make(packages: Path) -> bytes:
    """Return the archive of nvct in a folder, for the running interpreter."""
    sources, names = discover(packages)
    modules: dict[str, Module] = {}
    body = bytearray()
    for name, source in sorted(sources.items()):
        code = marshal.dumps(source.code())
        position = len(body), len(code)
        stamp = source.size, source.mtime_ns, source.is_package
        modules[name] = (*stamp, *position, needs(sources, name))
        body += code
    extensions = {name: path for name in sorted(names) if (path := _extension(name))}
    finder = _Source(FINDER, packages.joinpath(*FINDER.split(".")).with_suffix(".py")).code()
    head = marshal.dumps((finder, str(packages), modules, extensions))
    return importlib.util.MAGIC_NUMBER + len(head).to_bytes(LENGTH_SIZE, "little") + head + body


def discover(packages: Path) -> tuple[dict[str, _Source], set[str]]:
    """Return the sources of the hot side by module name, and other imported names."""
    sources: dict[str, _Source] = {}
    other_names: set[str] = set()
    todo = [
        f"{entry}.{path.stem}"
        for entry in ENTRIES
        for path in packages.joinpath(*entry.split(".")).glob("[!_]*.py")
    ]
    while todo:
        name = todo.pop()
        if name in sources or name in other_names:
            continue
        path = _find(packages, name)
        if path is None:
            other_names.add(name)
            continue
        sources[name] = _Source(name, path)
        parent = name.rpartition(".")[0]
        todo += [*sources[name].imports(at_once=False), *([parent] if parent else [])]
    return sources, other_names


def digest(sources: dict[str, _Source]) -> str:
    """Return a hash of the names and texts of the sources, as 16 hex digits."""
    from _blake2 import blake2b  # the interpreter of nvct-hot has no hashlib

    state = blake2b(digest_size=8)
    for name, source in sorted(sources.items()):
        state.update(f"{name} {len(source.text)}\n".encode() + source.text)
    hex_digits: str = state.hexdigest()
    return hex_digits


def needs(sources: dict[str, _Source], name: str) -> tuple[str, ...]:
    """Return the hot modules that a module imports, each after those that it imports itself."""
    order: dict[str, None] = {}
    visited = {name}

    def visit(importer: str) -> None:
        for imported in sources[importer].imports(at_once=True):
            parts = imported.split(".")
            for module in (".".join(parts[: n + 1]) for n in range(len(parts))):
                if module in sources and module not in visited:
                    visited.add(module)
                    visit(module)
                    order[module] = None

    visit(name)
    return tuple(order)


def _find(packages: Path, name: str) -> Path | None:
    parts = name.split(".")
    if parts[0] != "nvct":
        return None
    folder = packages.joinpath(*parts)
    for path in (folder / "__init__.py", folder.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _extension(name: str) -> str:
    """Return the file of an extension module of the standard library, "" for other names."""
    if "." in name or name in sys.builtin_module_names:
        return ""
    spec = importlib.util.find_spec(name)
    loader = spec.loader if spec is not None else None
    return loader.path if isinstance(loader, importlib.machinery.ExtensionFileLoader) else ""


def write(packages: Path, path: str = "") -> str:
    """Make the archive and write it, by default in the __pycache__ of nvct; return its path."""
    path = path or f"{packages}/nvct/__pycache__/hot-{sys.implementation.cache_tag}.bin"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomic(path, make(packages), mode=0o644)
    return path
