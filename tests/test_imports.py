"""Who may import whom: the table of docs/decisions/0001-packaging-layout.md, enforced on the source text."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from tests.packages import source_files
from tests.paths import REPO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The model: values and rules.
MODEL = {
    "chunks", "clock", "deltas", "eventlog", "events", "header", "history", "invariants", "legacy", "lossless", "measure", "messages",
    "opaque", "payloads", "seeds", "session", "shapes", "surface", "vocabulary",
}  # fmt: skip
# What a pure module may never see, wherever it stands in the file.
IMPURE = {
    "asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "aiofiles", "filelock", "zstandard",
}  # fmt: skip
# The exceptions, each with its reason.
ALLOWED_IMPURE = {
    ("sessionstore.clock", "time"),  # the one place that reads the wall clock
    ("sessionstore.session", "logging"),  # an observer that raises is logged and contained
    ("sessionstore.session", "_thread"),  # only get_ident: an append from another thread raises
}
# Drivers and optional packages: importing sessionstore must not load them.
LAZY = {"aiofiles", "filelock", "zstandard", "click", "rich", "platformdirs"}
# Backends do not import each other; these are what they share.
SHARED_BACKEND_MODULES = {"base", "files", "paths"}

SOURCES = source_files()


def role(module: str) -> str:
    """Which row of the import table *module* belongs to."""
    parts = module.split(".")
    if len(parts) == 1:
        return "top"
    if parts[1] == "errors":
        return "errors"
    if parts[1] in {"backends", "recovery", "cli"}:
        return parts[1]
    return "model" if parts[1] in MODEL else "shell"


MAY_IMPORT = {
    "errors": {"errors"},
    "model": {"model", "errors"},
    "recovery": {"model", "errors", "recovery"},
    "backends": {"model", "errors", "recovery", "backends"},
}
# The seams that a backend may use although they belong to the shell.
BACKENDS_MAY_ALSO_IMPORT = {"sessionstore.settle"}


def imports(path: Path, *, typing_too: bool = True) -> Iterator[tuple[str, bool]]:
    """Every import in *path* as (module, at_top_level); a name imported from a package counts as its module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from _imports(tree.body, top=True, typing_too=typing_too)


def _imports(body: list[ast.stmt], *, top: bool, typing_too: bool) -> Iterator[tuple[str, bool]]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            base = node.module or ""
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield (full if full in SOURCES else base), top
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            if typing_too:
                yield from _imports(node.body, top=False, typing_too=True)
            yield from _imports(node.orelse, top=top, typing_too=typing_too)
        else:
            inside = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            children = [child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom)]
            yield from _imports(list(children), top=inside, typing_too=typing_too)


def test_the_reader_of_imports_sees_them_wherever_they_stand(tmp_path: Path) -> None:
    """Imports in functions, in try blocks and for type checkers are found and told apart."""
    source = tmp_path / "m.py"
    source.write_text(
        "import os\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\n"
        "try:\n    import b\nexcept ImportError:\n    pass\ndef f():\n    import c.d\n",
        encoding="utf-8",
    )
    assert list(imports(source)) == [("os", True), ("typing", True), ("a", False), ("b", True), ("c.d", False)]
    assert ("a", False) not in list(imports(source, typing_too=False))


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_a_module_imports_only_what_its_row_allows(module: str) -> None:
    """The model knows no recovery, recovery no backend, a backend no store."""
    mine = role(module)
    for imported, _ in imports(SOURCES[module], typing_too=mine != "errors"):
        assert imported.split(".")[0] not in {"backends", "recovery"}, f"{module} imports {imported} by its short name"
        if not imported.startswith("sessionstore") or mine not in MAY_IMPORT:
            continue
        allowed = role(imported) in MAY_IMPORT[mine]
        if mine == "backends":
            allowed = allowed or imported in BACKENDS_MAY_ALSO_IMPORT
        assert allowed, f"{module} ({mine}) imports {imported} ({role(imported)})"


@pytest.mark.parametrize("module", sorted(m for m in SOURCES if role(m) in {"errors", "model", "recovery"}))
def test_the_pure_modules_reach_for_nothing_outside(module: str) -> None:
    """No files, clock, randomness, threads or event loop in the model and in recovery."""
    for imported, _ in imports(SOURCES[module]):
        root = imported.split(".")[0]
        assert root not in IMPURE or (module, root) in ALLOWED_IMPURE, f"{module} imports {imported}"
        assert root != "_thread" or (module, root) in ALLOWED_IMPURE, f"{module} imports {imported}"


@pytest.mark.parametrize("module", sorted(m for m in SOURCES if role(m) == "backends"))
def test_backends_do_not_import_each_other(module: str) -> None:
    """A backend can be removed without touching another."""
    parts = module.split(".")
    if len(parts) < 3:
        return
    for imported, _ in imports(SOURCES[module]):
        other = imported.split(".")
        if other[:2] == ["sessionstore", "backends"] and len(other) > 2 and other[2] != parts[2]:
            assert other[2] in SHARED_BACKEND_MODULES, f"{module} imports {imported}"


@pytest.mark.parametrize("module", sorted(m for m in SOURCES if role(m) != "cli"))
def test_drivers_are_imported_inside_functions(module: str) -> None:
    """Neither an extra that is missing nor a driver that is slow to load gets in the way of an import."""
    for imported, top in imports(SOURCES[module], typing_too=False):
        assert not (top and imported.split(".")[0] in LAZY), f"{module} imports {imported} at its top"


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_the_library_has_no_assert_and_no_print(module: str) -> None:
    """Python -O changes nothing, and nobody's terminal is written to but by the command."""
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Assert), f"{module}:{node.lineno} asserts"
        printed = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        assert not printed or role(module) == "cli", f"{module} prints"


# Each module gets a process forked from one that has loaded nothing of ours.  The package itself is a bare shell there:
# its __init__ imports nearly everything, in an order that would hide every cycle.  The command uses the package as its
# users do, so it gets the real one.
IMPORT_EACH_ALONE = """
import asyncio, importlib, json, logging, os, pathlib, sys, types
import msgspec

def alone(modules):
    failed = 0
    for module in modules:
        pid = os.fork()
        if pid == 0:
            try:
                importlib.import_module(module)
            except BaseException as error:
                print(f"{module}: {type(error).__name__}: {error}", flush=True)
                os._exit(1)
            os._exit(0)
        failed |= os.waitpid(pid, 0)[1]
    return failed

folder, *modules = sys.argv[1:]
shell = types.ModuleType("sessionstore")
shell.__path__ = [folder]
sys.modules["sessionstore"] = shell
failed = alone(m for m in modules if not m.startswith("sessionstore.cli"))
del sys.modules["sessionstore"]
import sessionstore
failed |= alone(m for m in modules if m.startswith("sessionstore.cli"))
sys.exit(1 if failed else 0)
"""


@pytest.mark.slow
def test_every_module_imports_alone_in_a_fresh_interpreter() -> None:
    """No import cycle hides behind the order in which a normal run happens to import."""
    modules = sorted(m for m in SOURCES if m != "sessionstore" and not m.endswith("__main__"))
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH_ALONE, str(REPO / "sessionstore"), *modules],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_the_package_loads_no_driver_and_no_command() -> None:
    """`import sessionstore` costs msgspec and our own modules, nothing else from outside."""
    script = "import sys, sessionstore; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "sessionstore" in loaded
    assert not {name for name in loaded if name.split(".")[0] in LAZY}
    assert not {name for name in loaded if name.startswith("sessionstore.cli")}


def test_importing_the_package_loads_little_of_the_standard_library() -> None:
    """Beside asyncio and msgspec nothing that costs milliseconds is imported: no json, no pathlib, no hashing."""
    bare = "import sys; sys.path[:0] = sys.argv[1:]; import asyncio, msgspec; "
    script = bare + "known = set(sys.modules); import sessionstore; print('\\n'.join(set(sys.modules) - known))"
    # Without site: what an editable install imports on its own would hide what the package imports.
    places = [str(REPO), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    result = subprocess.run([sys.executable, "-S", "-c", script, *places], capture_output=True, text=True, check=True)
    foreign = {name.split(".")[0] for name in result.stdout.split()} - {"sessionstore"}
    assert foreign <= {"_bisect", "bisect"}
