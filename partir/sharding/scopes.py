"""Named scopes (`layer_0/attention-block`): whether one lies in what a user named, and which are the same in every layer."""

from __future__ import annotations

import fnmatch
import re

_NUMBER = re.compile(r"\d+")


def in_scope(pattern: str, scope: str) -> bool:
    """Whether a scope lies in the scope a pattern names: by full path, by glob, or by any level's name.

    >>> in_scope("attention-block", "layer_0/attention-block/query"), in_scope("layer_1", "layer_10/mlp")
    (True, False)
    """
    levels = scope.split("/")
    parts = pattern.strip("/").split("/")
    return any(
        all(fnmatch.fnmatchcase(level, part) for level, part in zip(levels[i : i + len(parts)], parts, strict=False))
        for i in range(len(levels) - len(parts) + 1)
    )


def without_numbers(scope: str) -> str:
    """A scope as it is the same in every layer.

    >>> without_numbers("layer_11/attention-block/query")
    'layer_*/attention-block/query'
    """
    return _NUMBER.sub("*", scope)
