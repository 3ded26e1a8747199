# SPDX-License-Identifier: Apache-2.0
"""Write frozen.c and frozen.bin: every module of the static executable as byte code.

Run by the interpreter that is built in, as byte code is its own: freeze.py REPOSITORY LIBRARY
STANDINS OUT ABOUT. Prints the digest of the hot side. Contract: the same sources and the same
interpreter give the same bytes.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from types import CodeType
    from typing import TypeAlias

    from nvct.launcher.archive import _Source

    Modules: TypeAlias = dict[str, tuple[CodeType, bool]]

LIBRARY = {
    "_frozen_importlib": "importlib/_bootstrap.py",
    "_frozen_importlib_external": "importlib/_bootstrap_external.py",
    "abc": "abc.py",
    "codecs": "codecs.py",
    "encodings": "encodings/__init__.py",
    "encodings.aliases": "encodings/aliases.py",
    "encodings.unicode_escape": "encodings/unicode_escape.py",
    "encodings.utf_8": "encodings/utf_8.py",
    "io": "io.py",
}
"""What the interpreter itself imports at start, from its own library."""
STANDINS = {
    "json": "json/__init__.py",
    "json.decoder": "json/decoder.py",
    "traceback": "traceback.py",
}
EXTENSIONS = (
    "_abc", "_blake2", "_codecs", "_io", "_json", "_nvct", "_signal", "_struct", "_thread",
    "_weakref", "binascii", "errno", "fcntl", "gc", "posix", "time",
)  # fmt: skip
CORE = {
    "_imp": "PyInit__imp",
    "_warnings": "_PyWarnings_Init",
    "marshal": "PyMarshal_Init",
}
HEAD = """\
/* Made by packaging/static/freeze.py: Modules/config.c and Python/frozen.c of the interpreter. */
#include <Python.h>
struct _module_alias { const char *name, *orig; };
"""


def main(repository: str, library: str, standins: str, out: str, about: str) -> None:
    """Write both files."""
    sys.path[:] = [repository, library]  # nothing else may be imported
    from pathlib import Path

    from nvct.launcher import archive

    sources, others = archive.discover(Path(repository))
    print(archive.digest(sources))
    blob = bytearray()
    rows: dict[str, str] = {}
    modules = of_the_library(library, standins) | of_nvct(sources, others)
    for name, (code, is_package) in modules.items():
        data = marshal.dumps(code)
        rows[name] = f'{{"{name}", frozen_bin + {len(blob)}, {len(data)}, {int(is_package)}}},'
        blob += data
    with open(f"{out}/frozen.bin", "wb") as file:
        file.write(blob)
    with open(f"{out}/frozen.c", "w", encoding="ascii") as text:
        text.write(HEAD + inittab() + tables(rows, about))


def of_the_library(library: str, standins: str) -> Modules:
    """Compile what the interpreter needs of its own library."""
    modules: Modules = {}
    for folder, names in ((library, LIBRARY), (standins, STANDINS)):
        for name, path in names.items():
            with open(f"{folder}/{path}", "rb") as file:
                text = file.read()
            code = compile(text, f"<frozen {name}>", "exec", dont_inherit=True, optimize=2)
            modules[name] = code, path.endswith("__init__.py")
    return modules


def of_nvct(sources: dict[str, _Source], others: set[str]) -> Modules:
    """Compile the hot side.

    Raises:
        SystemExit: it imports what is not frozen in, or asks for something too early.
    """
    modules: Modules = {}
    lacking: set[str] = set()
    for name, source in sorted(sources.items()):
        path = name.replace(".", "/") + ("/__init__.py" if source.is_package else ".py")
        code = compile(source.tree, path, "exec", dont_inherit=True, optimize=0)
        modules[name] = code, source.is_package
        lacking |= absent(source.tree)
        if asked := early(source.tree):
            raise SystemExit(f"freeze.py: {name} asks the host when it is imported: {asked}")
    if lacking:  # the C library or the kernel's headers that it was built with have no such thing
        raise SystemExit(f"freeze.py: this interpreter has no {', '.join(sorted(lacking))}")
    here = {*modules, *LIBRARY, *STANDINS, *EXTENSIONS, *CORE, "sys", "builtins", "_ctypes"}
    missing = sorted(n for n in others if "." not in n and n not in here)
    if missing:
        raise SystemExit(f"freeze.py: the hot side imports {', '.join(missing)}: add it here")
    return modules


def early(tree: ast.AST) -> str:
    """Return what a module asks the host or the process outside of its functions, "" for nothing.

    It would be asked when nvct-hot is built.
    """
    import ast

    for node in ast.iter_child_nodes(tree):
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            name = f"{called.value.id}.{called.attr}"
            is_asked = called is not node and called.value.id in (*EXTENSIONS, "sys")
            if is_asked or name in ("posix.environ", "sys.argv"):
                return name
        inner = node.args if isinstance(node, ast.FunctionDef | ast.Lambda) else node
        if found := early(inner):
            return found
    return ""


def absent(tree: ast.AST) -> set[str]:
    """Return what a module takes of the built-in modules that are here, and is not in them."""
    import ast

    taken = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            taken |= {(node.module, alias.name) for alias in node.names}
    here = {name: __import__(name) for name in EXTENSIONS if name in sys.builtin_module_names}
    return {f"{m}.{attr}" for m, attr in taken if m in here and not hasattr(here[m], attr)}


def inittab() -> str:
    """Return the table of built-in modules."""
    entries = {name: f"PyInit_{name}" for name in EXTENSIONS} | CORE
    declared = "".join(f"extern PyObject *{init}(void);\n" for init in entries.values())
    rows = "".join(f'\t{{"{name}", {init}}},\n' for name, init in sorted(entries.items()))
    rows += '\t{"builtins", NULL},\n\t{"sys", NULL},\n\t{NULL, NULL},\n'
    return f"{declared}struct _inittab _PyImport_Inittab[] = {{\n{rows}}};\n"


def tables(rows: dict[str, str], about: str) -> str:
    """Return the tables of frozen modules: zipimport, site and the tests are not among them."""
    imported = [*EXTENSIONS, *(name for name in rows if name not in LIBRARY)]
    first = "".join(f"\t{rows.pop(name)}\n" for name in list(LIBRARY)[:2])
    rest = "".join(f"\t{row}\n" for row in rows.values())
    said = "".join(f"\t{_quoted(line)}\n" for line in about.splitlines())
    names = "".join(f'\t"{name}",\n' for name in imported)
    return f"""\
extern const unsigned char frozen_bin[];
__asm__(".section .rodata\\n.balign 16\\n.global frozen_bin\\n"
	"frozen_bin: .incbin \\"frozen.bin\\"\\n.previous\\n");
#define END {{NULL, NULL, 0, 0}}
static const struct _frozen bootstrap[] = {{\n{first}\tEND\n}};
static const struct _frozen modules[] = {{\n{rest}\tEND\n}};
static const struct _frozen none[] = {{ END }};
const struct _frozen *_PyImport_FrozenBootstrap = bootstrap;
const struct _frozen *_PyImport_FrozenStdlib = modules;
const struct _frozen *_PyImport_FrozenTest = none;
const struct _frozen *PyImport_FrozenModules = NULL;
static const struct _module_alias aliases[] = {{
	{{"_frozen_importlib", "importlib._bootstrap"}},
	{{"_frozen_importlib_external", "importlib._bootstrap_external"}},
	{{NULL, NULL}},
}};
const struct _module_alias *_PyImport_FrozenAliases = aliases;
const char nvct_about[] =\n{said};
const char *const nvct_modules[] = {{\n{names}\tNULL,\n}};
"""


def _quoted(line: str) -> str:
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"'


if __name__ == "__main__":
    main(*sys.argv[1:])
