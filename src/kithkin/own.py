"""What a user brings along: a path, and an object named as `module:name`, or as `file.py:name`."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from kithkin.errors import KithkinError

_brought: set[str] = set()  # the files of all that was found
_loaded: dict[str, tuple[str, list[Path]]] = {}  # of a file's module: the sha256 of what was run, and of which files


def expanded(path: str | Path) -> Path:
    """The path with `~` as the home folder; `~name` where nobody is called so stays, and is then found missing."""
    return Path(os.path.expanduser(path))


def at_home(word: str) -> str:
    """A word of a command line in which the shell has left `~` as it is: `--out=~/run`."""
    flag, equals, value = word.partition("=")
    return f"{flag}={expanded(value)}" if flag.startswith("--") and equals and value.startswith("~") else word


def is_own(name: str) -> bool:
    """Whether it is the user's: what is built in has no colon."""
    return ":" in name


def whole(name: str) -> str:
    """The name, such that it is found again from any folder: a file of the current folder by its whole path."""
    if not is_own(name):
        return name
    module, _, thing = name.rpartition(":")
    file = _file_of(module)
    return f"{file}:{thing}" if file else name


def short(name: str) -> str:
    """How tables and pages call it.

    >>> short("/home/me/my_net.py:vit"), short("um")
    ('my_net:vit', 'um')
    """
    module, colon, thing = name.rpartition(":")
    return f"{Path(module).stem if module.endswith('.py') else module}{colon}{thing}"


def find(name: str, flag: str) -> Any:
    """The named object. Importing it runs the user's code."""
    module, _, thing = name.rpartition(":")
    if not module or not thing:
        raise KithkinError(f"{flag} is '{name}'.", f"Give {flag} module:name or {flag} path/to/file.py:name.")
    found = _import(module, flag)
    _brought.add(getattr(found, "__file__", None) or "")
    if not hasattr(found, thing):
        names = [n for n in vars(found) if not n.startswith("_")]
        near = difflib.get_close_matches(thing, names, n=1)
        guess = f"Did you mean '{module}:{near[0]}'?" if near else f"Define {thing} there, or name another."
        raise KithkinError(f"{flag}: {module} has no '{thing}'.", guess)
    return getattr(found, thing)


def source_hash(name: str, flag: str) -> str | None:
    """The sha256 of the file that holds it, where there is one, and of what that imports from beside it."""
    module = _import(name.rpartition(":")[0], flag)
    if module.__name__ in _loaded:
        return _loaded[module.__name__][0]
    file = getattr(module, "__file__", None)
    return _hash([Path(file)]) if file else None


def look_again() -> None:
    """Forget what was loaded of files that have changed since: in a notebook they are written anew between two runs."""
    for name, (sha256, files) in list(_loaded.items()):
        if not all(file.is_file() for file in files) or _hash(files) != sha256:
            _forget_beside(files)
            del sys.modules[name], _loaded[name]


def _forget_beside(files: Iterable[Path]) -> None:
    """Of what lies beside a file another version, or another folder's, may bear the same name."""
    for file in files:
        if getattr(sys.modules.get(file.stem), "__file__", None) == str(file):
            del sys.modules[file.stem]


def _hash(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _with_those_beside(file: Path) -> list[Path]:
    """The file, and those of its folder that it imports, which import others."""
    files = [file]
    for each in files:
        try:
            nodes = list(ast.walk(ast.parse(each.read_bytes())))
        except SyntaxError:
            continue  # of one that is not imported yet
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
        found = [file.parent / f"{name}.py" for name in names]
        files += [path for path in dict.fromkeys(found) if path.is_file() and path not in files]
    return files


def _file_of(module: str) -> Path | None:
    """The file that a module's name means: one that is given as such, or one of the current folder."""
    file = expanded(module if module.endswith(".py") else f"{module}.py")
    return file.resolve() if file.is_file() else None


def _import(module: str, flag: str) -> ModuleType:
    file = _file_of(module)
    if module.endswith(".py") and not file:
        raise KithkinError(f"{flag}: there is no file {module}.", "Check the path.")
    try:
        with _on_path(file.parent if file else Path.cwd()):
            return _load(file) if file else importlib.import_module(module)
    except ModuleNotFoundError as e:
        if not file and e.name and (module == e.name or module.startswith(e.name + ".")):
            remedy = "Install it, or start kithkin in the folder that holds its file."
            raise KithkinError(f"{flag}: there is no module '{module}'.", remedy) from None
        raise _broken(module, flag, e) from e
    except KithkinError:
        raise
    except (Exception, SystemExit) as e:  # the user's code may raise anything
        raise _broken(module, flag, e) from e


def _broken(module: str, flag: str, e: BaseException) -> KithkinError:
    return KithkinError(f"{flag}: importing {module} fails ({told(e)}).", "Mend it until Python imports it.")


def told(e: BaseException) -> str:
    """An exception of the user's code in one line."""
    return f"{type(e).__name__}: {' '.join(str(e).split())}".removesuffix(": ")


def blamed(e: BaseException) -> BaseException:
    """The error of which the user's code is the cause, told with its place there; any other as it is."""
    at = [frame for frame in traceback.extract_tb(e.__traceback__) if frame.filename in _brought]
    if not at or isinstance(e, KithkinError):
        return e
    return KithkinError(f"{at[-1].filename}, line {at[-1].lineno}, in {at[-1].name}: {told(e)}.", "Mend it there.")


def _load(file: Path) -> ModuleType:
    """The module of a file, once."""
    name = f"{file.stem} of {file.parent}"  # no other module's name: two folders may each have a net.py,
    if name in sys.modules:
        return sys.modules[name]
    for _, (first, *others) in _loaded.values():
        if first.parent != file.parent:
            _forget_beside(others)  # and a part.py beside it
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    files = _with_those_beside(file)
    _loaded[name] = _hash(files), files
    return module


@contextmanager
def _on_path(folder: Path) -> Generator[None, None, None]:
    """Its modules can be imported, as where Python is started there."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
