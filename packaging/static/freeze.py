# SPDX-License-Identifier: Apache-2.0
"""Write frozen.c and frozen.bin: every module of the static executable as byte code.

Run by the interpreter that is built in, as byte code is its own: freeze.py REPOSITORY LIBRARY
STANDINS OUT ABOUT. Contract: the same sources and the same interpreter give the same bytes.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from types import CodeType

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
    blob = bytearray()
    rows: dict[str, str] = {}
    for name, (code, is_package) in collect(repository, library, standins).items():
        data = marshal.dumps(code)
        rows[name] = f'{{"{name}", frozen_bin + {len(blob)}, {len(data)}, {int(is_package)}}},'
        blob += data
    with open(f"{out}/frozen.bin", "wb") as file:
        file.write(blob)
    with open(f"{out}/frozen.c", "w", encoding="ascii") as text:
        text.write(HEAD + inittab() + tables(rows, about))


def collect(repository: str, library: str, standins: str) -> dict[str, tuple[CodeType, bool]]:
    """Compile everything, by module name: code, and whether it is a package.

    Raises:
        SystemExit: the hot side imports what is not frozen in.
    """
    from pathlib import Path

    from nvct.launch import archive

    modules: dict[str, tuple[CodeType, bool]] = {}
    for folder, names in ((library, LIBRARY), (standins, STANDINS)):
        for name, path in names.items():
            text = Path(folder, path).read_bytes()
            code = compile(text, f"<frozen {name}>", "exec", dont_inherit=True, optimize=2)
            modules[name] = code, path.endswith("__init__.py")
    lacking: set[str] = set()
    sources, others = archive.discover(Path(repository))
    for name, source in sorted(sources.items()):
        path = name.replace(".", "/") + ("/__init__.py" if source.is_package else ".py")
        code = compile(source.tree, path, "exec", dont_inherit=True, optimize=0)
        modules[name] = code, source.is_package
        lacking |= absent(source.tree)
    if lacking:  # the C library or the kernel's headers that it was built with have no such thing
        raise SystemExit(f"freeze.py: this interpreter has no {', '.join(sorted(lacking))}")
    here = {*modules, *EXTENSIONS, *CORE, "sys", "builtins", "_ctypes"}
    missing = sorted(n for n in others if "." not in n and n not in here)
    if missing:
        raise SystemExit(f"freeze.py: the hot side imports {', '.join(missing)}: add it here")
    return modules


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
    first = "".join(f"\t{rows.pop(name)}\n" for name in list(LIBRARY)[:2])
    rest = "".join(f"\t{row}\n" for row in rows.values())
    said = "".join(f"\t{_quoted(line)}\n" for line in about.splitlines())
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
"""


def _quoted(line: str) -> str:
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"'


if __name__ == "__main__":
    main(*sys.argv[1:])
