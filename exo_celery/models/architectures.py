"""What mlx-lm knows about an architecture, read from its source files: importing it would bring MLX into the process.

mlx-lm runs a checkpoint when a module of `mlx_lm.models` carries its `model_type` (some types stand for another) and
defines `Model`; it can split every layer over nodes when that class has a method `shard`.
"""

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from exo_celery.errors import ConfigurationError, ModelFolderError


def module_of(config: Mapping[str, Any]) -> str:
    """Return the module of mlx-lm that runs a checkpoint with this config.

    Raises:
        ModelFolderError: there is none; the message says why.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind.isprintable() or "/" in kind or "." in kind:
        raise ModelFolderError(f"config.json names no model_type ({kind!r}), so mlx-lm cannot tell what to run")
    if config.get("model_file"):
        raise ModelFolderError(
            f"config.json wants the code of {config['model_file']!r} to be run; code that comes with a model never is"
        )
    by_type, by_architecture = remappings()
    named = config.get("architectures") or ()
    named = (named,) if isinstance(named, str) else named
    special = [by_architecture[kind, name] for name in named if (kind, name) in by_architecture]
    module = special[0] if special else by_type.get(kind, kind)
    if "Model" not in classes(module):
        raise ModelFolderError(
            f"architecture {kind!r} is not one that the installed mlx-lm can run; "
            "take another model, or a newer mlx-lm once it knows it"
        )
    return module


@cache
def supports_tensor(module: str, name: str = "Model") -> bool:
    """Whether a class of an mlx-lm module has the method `shard`, its own or an inherited one."""
    known = classes(module)
    if name not in known:
        return False
    if any(isinstance(item, ast.FunctionDef) and item.name == "shard" for item in known[name].body):
        return True
    imported = imports(module)
    for base in known[name].bases:
        match base:
            case ast.Name(id=local) if local in known:
                found = supports_tensor(module, local)
            case ast.Name(id=alias) if alias in imported:
                found = supports_tensor(*imported[alias])
            case _:
                found = False
        if found:
            return True
    return False


@cache
def classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes that a module of mlx-lm defines; none when there is no such module."""
    return {node.name: node for node in tree(f"models/{module}.py").body if isinstance(node, ast.ClassDef)}


def imports(module: str) -> dict[str, tuple[str, str]]:
    """Return the names that a module takes from its sisters: local name → (module, name there)."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree(f"models/{module}.py").body
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for alias in node.names
    }


@cache
def remappings() -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Return mlx-lm's own tables: model type → module, and (model type, architecture) → module."""
    found: dict[str, Any] = {}
    for node in tree("utils.py").body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and "REMAPPING" in node.targets[0].id:
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found.get("MODEL_REMAPPING", {}), found.get("MODEL_ARCHITECTURE_REMAPPING", {})


def tree(file: str) -> ast.Module:
    """Parse a source file of the installed mlx-lm; a file that is not there is an empty one."""
    path = package() / file
    return ast.parse(path.read_text()) if path.is_file() else ast.Module(body=[], type_ignores=[])


@cache
def package() -> Path:
    """Return where mlx-lm is installed, without importing it."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("mlx-lm is not installed in this Python: install exo_celery with its requirements")
    return Path(spec.submodule_search_locations[0])
