"""Running code right behind the import of a module, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from memledger_comfy import log


class _Finder:
    """On sys.meta_path in front: asks the others for the wanted modules, and wraps their loader."""

    def __init__(self, names: set[str], then: Callable[[], None]) -> None:
        self.names = names
        self.then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.names:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self.then)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Everything is the real loader's, but for the call behind exec_module."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # The module is to look as if nobody had been here: others read its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _executed.add(module.__name__)
        try:
            self._then()
        except Exception as error:
            log.failed("after an import", error)


_finders: list[_Finder] = []
_executed: set[str] = set()


def loaded(name: str) -> ModuleType | None:
    """The module of that name if it is there and complete: one that is just being imported has
    only the names from above the import that it is in."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False) and name not in _executed:
        return None
    return module


def after_import(names: Iterable[str], then: Callable[[], None]) -> None:
    """Call `then` behind each import of one of `names`, also behind a reload."""
    finder = _Finder(set(names), then)
    _finders.append(finder)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]


def remove() -> None:
    for finder in _finders:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]
    _finders.clear()
    _executed.clear()
