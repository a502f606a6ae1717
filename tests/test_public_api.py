"""The public surface: `__all__` everywhere and exact, docstrings on everything, errors that travel."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import re
from typing import TYPE_CHECKING

import pytest

import sessionstore
from sessionstore import errors
from tests.packages import source_files

if TYPE_CHECKING:
    from types import ModuleType

SOURCES = source_files()
MODULES = sorted(name for name in SOURCES if not any(part.startswith("_") for part in name.split(".")))


def defined_names(module: str) -> set[str]:
    """The public names that *module* defines at its top level: functions, classes, constants, aliases."""
    names = _names(ast.parse(SOURCES[module].read_text(encoding="utf-8")).body)
    return {name for name in names if not name.startswith("_")}


def _names(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.If):
            names |= _names(node.body) | _names(node.orelse)
        elif isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith(("TypeVar", "ParamSpec")):
                continue
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def passed_on(module: str) -> set[str]:
    """The names that *module* imports from another module of ours."""
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sessionstore.")
        for alias in node.names
    }


@pytest.mark.parametrize("module", MODULES)
def test_all_names_exactly_what_is_public(module: str) -> None:
    """`__all__` has no stranger and misses no public name; what is imported may be passed on by naming it there."""
    loaded = importlib.import_module(module)
    if SOURCES[module].name == "__init__.py" and not defined_names(module) and not hasattr(loaded, "__all__"):
        return  # a folder with nothing but a docstring
    exported: list[str] = list(loaded.__all__)
    assert len(exported) == len(set(exported))
    assert all(hasattr(loaded, name) for name in exported)
    if SOURCES[module].name != "__init__.py":
        assert defined_names(module) - set(exported) == set()
        assert set(exported) - defined_names(module) <= passed_on(module)


def test_the_package_exports_its_names_and_nothing_else() -> None:
    """What `from sessionstore import *` gives is what the package's namespace shows, submodules aside."""
    shown = {
        name
        for name, value in vars(sessionstore).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in {"annotations", "TYPE_CHECKING"}
    }
    assert shown == set(sessionstore.__all__)


def test_every_error_is_exported() -> None:
    """A user catches every error by a name of the package."""
    assert set(errors.__all__) <= set(sessionstore.__all__)


def public_members(cls: type) -> list[tuple[str, object]]:
    """The public methods and properties that *cls* itself defines."""
    return [
        (name, member)
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod))
    ]


def undocumented(module: ModuleType) -> list[str]:
    """The public names of *module* without a docstring of their own."""
    missing = [] if module.__doc__ else [module.__name__]
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isclass(value):
            if not (value.__dict__.get("__doc__") or "").strip():
                missing.append(f"{module.__name__}.{name}")
            for member_name, member in public_members(value):
                inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if not inspect.getdoc(inner):
                    missing.append(f"{module.__name__}.{name}.{member_name}")
        elif inspect.isfunction(value) and not value.__doc__:
            missing.append(f"{module.__name__}.{name}")
    return missing


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_has_a_docstring(module: str) -> None:
    """Modules, classes, functions, methods and properties say what they mean."""
    assert undocumented(importlib.import_module(module)) == []


EXAMPLES: tuple[errors.SessionStoreError, ...] = (
    errors.SessionStoreError("anything"),
    errors.SessionNotFoundError("s1", where="/root"),
    errors.SessionExistsError("s1", where="/root/s1"),
    errors.DuplicateSessionError("s1", paths=["/a", "/b"]),
    errors.FollowError("s1", seq=7, reason="the log was replaced"),
    errors.SessionLockedError("s1", pid=7, host="h", program="agent", since=1_700_000_000_000),
    errors.ConcurrentWriteError("s1", path="/p", expected="10 bytes", found="12 bytes"),
    errors.InvalidEventError("is no str", event_type="tool/call", path="$.name", seq=3, session_id="s1"),
    errors.InvariantError("no turn is open", event_type="step/start", seq=4),
    errors.ForkError("OPEN_TURN", "the turn is open", session_id="s1"),
    errors.DamagedLogError("s1", path="/p", verdict="damaged", findings=[]),
    errors.UnsupportedFormatError("version 7", direction="newer", session_id="s1", path="/p"),
    errors.StorageError("write", path="/p", os_error=OSError(28, "No space left on device"), session_id="s1"),
    errors.PendingLimitError("s1", pending_bytes=10, limit=5),
    errors.StoreClosedError("the store was closed", session_id="s1"),
    errors.WrongThreadError("s1"),
)


def test_the_examples_below_cover_every_error() -> None:
    """A new error class joins the pickling test."""
    assert {type(error).__name__ for error in EXAMPLES} == set(errors.__all__) - {"ForkCode"}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: errors.SessionStoreError) -> None:
    """Message and fields reach another process."""
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert {k: repr(v) for k, v in vars(back).items()} == {k: repr(v) for k, v in vars(error).items()}


@pytest.mark.parametrize("error", EXAMPLES[1:], ids=lambda error: type(error).__name__)
def test_an_error_carries_its_data_and_says_it(error: errors.SessionStoreError) -> None:
    """What went into an error is in its fields, and the session's id is in its message (a closed store names itself)."""
    assert vars(error)
    if "session_id" in vars(error) and not isinstance(error, errors.StoreClosedError):
        assert "s1" in str(error)


def annotations_of(value: object) -> list[str]:
    """The annotations that a user of a public class or function meets, as they are written."""
    found: list[str] = []
    members: list[object] = [value] if inspect.isfunction(value) else []
    if inspect.isclass(value):
        found += [str(each) for name, each in vars(value).get("__annotations__", {}).items() if name[0] != "_"]
        members += [member for _, member in public_members(value)]
        members += [vars(value)["__init__"]] if inspect.isfunction(vars(value).get("__init__")) else []
    for member in members:
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        found += [str(each) for each in getattr(function, "__annotations__", {}).values()]
    return found


def test_every_name_of_an_annotation_is_exported() -> None:
    """Whoever writes the type of an argument, a result or a field imports it from `sessionstore`."""
    ours = {name for module in MODULES for name in getattr(importlib.import_module(module), "__all__", ())}
    # What type checkers see as others, what is exported as FindingKind, pathlib's, and what no host makes or is given.
    inner = {"BlockField", "SourceField", "Opaque", "NonEmpty", "Maybe", "Kind", "Path"}
    inner |= {"EventLog", "Surface", "Recorder", "SalvagePlan", "EventAt"}
    inner |= {"Stored", "Writer"}  # who writes a backend has the module of its protocol
    used = {
        name
        for exported in sessionstore.__all__
        for annotation in annotations_of(getattr(sessionstore, exported))
        for name in re.findall(r"\b[A-Z]\w+", annotation)
    }
    assert (used & ours) - inner - set(sessionstore.__all__) == set()
