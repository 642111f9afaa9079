"""Loads the MODEL that a command line names: a model of the zoo, or `module:function` of the user, with its settings."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from partir.cli.inputs import near
from partir.errors import PartirError, PathError, ProgramError, error_text
from partir.zoo import MODELS, Example


def model_of(name: str, settings: Mapping[str, Any]) -> Example:
    """The function and abstract arguments that MODEL names. Raises PartirError, also in place of errors in the user's code."""
    if ":" in name:
        made = _call(_load(name), name, settings)
    elif name in MODELS:
        made = _call(MODELS[name], name, settings)
    else:
        raise PathError(
            error_text(
                f'no model "{name}"',
                why=f"the zoo has {', '.join(MODELS)}",
                hint=f"{near(name, MODELS, limit=1)}, or module:function for a model of your own",
            )
        )
    if isinstance(made, Example):
        return made
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple):  # type: ignore[reportUnknownArgumentType]
        return Example(made[0], made[1])  # type: ignore[reportUnknownArgumentType]
    raise ProgramError(
        error_text(
            f"{name} returns no model",
            why=f"it returned {type(made).__name__}",
            hint="return (function, (argument, ...)) or a partir.zoo.Example",
        )
    )


def _load(name: str) -> Callable[..., Any]:
    """The function that `module:function` names. As for `python -m`, the current directory is on the import path."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ProgramError(
            error_text(f"cannot import {module_name} for the model {name}", where=_place(error), why=_said(error))
        ) from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise PathError(
            error_text(
                f'no function "{attribute}" in {module_name}', hint=f"one of {near(attribute, public)}" if public else ""
            )
        )
    return found


def _call(function: Callable[..., Any], name: str, settings: Mapping[str, Any]) -> Any:
    """Call a model's function with settings. Raises ProgramError for unknown settings and for exceptions in the function."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        unknown = [key for key in settings if key not in names]
        if unknown:
            raise ProgramError(
                error_text(
                    f"{name} has no setting {', '.join(unknown)}",
                    why=f"its settings are {', '.join(names) or 'none'}",
                    hint=f"--set {near(unknown[0], names).split(',')[0]}=..." if names else "",
                )
            )
    try:
        return function(**settings)
    except PartirError:
        raise
    except Exception as error:
        if name in MODELS and isinstance(error, ValueError):  # the zoo's own errors have the same format as ours
            raise ProgramError(str(error)) from None
        raise ProgramError(error_text(f"cannot make the model {name}", where=_place(error), why=_said(error))) from error


def _place(error: Exception) -> str:
    """The last line of the user's own code in an error's traceback; "" if there is none."""
    others = (__file__, "<frozen", os.path.dirname(os.__file__))
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}" if own else ""


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", "\n          ")
