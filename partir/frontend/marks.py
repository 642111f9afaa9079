"""The marks that an author writes into a model: scopes, tags and sharding constraints. Outside partir they change nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from partir.errors import ProgramError, error_text

TAG = "partir.tag"
CONSTRAIN = "partir.constrain"

_importing: ContextVar[bool] = ContextVar("partir_importing", default=False)


@contextlib.contextmanager
def importing() -> Generator[None]:
    """Within this context marks lower to custom calls, which the bridge reads; elsewhere they lower to nothing."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def scope(name: str) -> contextlib.AbstractContextManager[Any]:
    """Name the ops that are made within, for tactics and reports: `with partir.scope("attention-block"): ...`.

    This is a `jax.named_scope`; other named scopes, and the module names of Haiku, Flax and Equinox, are scopes as well.
    """
    if not name or "/" in name:
        raise ProgramError(error_text(f"not a scope name: {name!r}", why="a scope is one level: some characters, but no /"))
    return jax.named_scope(name)


def tag(x: Any, name: str) -> Any:
    """Name a value for tactics (`partir.Manual({"#residual": 1}, axis="model")`) and reports. Returns `x` unchanged.

    `x` may be any pytree of arrays; each leaf gets the name.
    """
    if not name or "/" in name or "#" in name:
        raise ProgramError(error_text(f"not a tag: {name!r}", why="a tag is some characters, none of them / or #"))
    return jax.tree.map(lambda leaf: _tag_p.bind(leaf, name=name), x)


def constrain(x: Any, spec: PartitionSpec | Sequence[Any]) -> Any:
    """Ask that a value be sharded as `spec` says, over axes of the mesh that partir partitions over.

    Like `jax.lax.with_sharding_constraint`, but it needs no mesh and is the identity outside partir. Its gradient has the same
    constraint. `x` may be any pytree of arrays, each with at least as many dims as the spec has entries.
    """
    axes = tuple(() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec)

    def one(leaf: Any) -> Any:
        rank = jax.numpy.ndim(leaf)
        if rank < len(axes):
            raise ProgramError(
                error_text(
                    f"cannot constrain a value of {rank} dims to {PartitionSpec(*spec)}",
                    why=f"the spec speaks of {len(axes)} dims",
                    hint="leave the last entries out",
                )
            )
        return _constrain_p.bind(leaf, axes=axes + ((),) * (rank - len(axes)))

    return jax.tree.map(one, x)


def _identity(x: Any, **_: Any) -> Any:
    return x


def _lowering(target: str) -> Any:
    def lower(ctx: Any, x: Any, **params: Any) -> Any:
        if not _importing.get():
            return [x]
        payload = json.dumps(params[next(iter(params))])  # each mark has one parameter: the name or the axes
        return stablehlo.CustomCallOp(
            [x.type], [x], ir.StringAttr.get(target), backend_config=ir.StringAttr.get(payload)
        ).results

    return lower


def _primitive(name: str, target: str) -> Primitive:
    primitive = Primitive(name)
    primitive.def_impl(_identity)
    primitive.def_abstract_eval(_identity)
    mlir.register_lowering(primitive, _lowering(target))
    return primitive


_tag_p = _primitive("partir_tag", TAG)
_constrain_p = _primitive("partir_constrain", CONSTRAIN)


def _tag_jvp(primals: Any, tangents: Any, *, name: str) -> Any:
    return _tag_p.bind(primals[0], name=name), tangents[0]


def _tag_batch(args: Any, dims: Any, *, name: str) -> Any:
    return _tag_p.bind(args[0], name=name), dims[0]


def _constrain_transpose(cotangent: Any, _x: Any, *, axes: Any) -> Any:
    return [_constrain_p.bind(cotangent, axes=axes) if type(cotangent) is not ad.Zero else cotangent]


def _constrain_batch(args: Any, dims: Any, *, axes: Any) -> Any:
    (position,) = dims
    return _constrain_p.bind(args[0], axes=(*axes[:position], (), *axes[position:])), position


ad.primitive_jvps[_tag_p] = _tag_jvp
batching.primitive_batchers[_tag_p] = _tag_batch
ad.deflinear2(_constrain_p, _constrain_transpose)
batching.primitive_batchers[_constrain_p] = _constrain_batch
