"""Imports a JAX function as a `Program`: traces it on abstract arguments, lowers it for a platform, and bridges it to xDSL."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from partir.errors import PartirError, ProgramError, error_text
from partir.frontend import signature as signature_
from partir.frontend.bridge import bridge
from partir.frontend.flow import Flow
from partir.frontend.foreign import named_meshes
from partir.frontend.keys import keys_of
from partir.frontend.marks import importing
from partir.frontend.memories import moves_of
from partir.frontend.state import inferred, stated
from partir.mesh import Mesh
from partir.program import Leaf, Program, Signature, main_of


@dataclass(frozen=True)
class Options:
    """How to trace a function: options of `jax.jit`, with the same meaning, and `state` of `partir.jit`."""

    static_argnums: Any = None
    static_argnames: Any = None
    donate_argnums: Any = None
    donate_argnames: Any = None
    state: Any = None

    def keywords(self) -> dict[str, Any]:
        """The options that `jax.jit` takes, as keywords."""
        return {name: value for name, value in vars(self).items() if value is not None and name != "state"}


@dataclass(frozen=True)
class Trees:
    """The pytrees of a call: `arguments` as (args, kwargs) without static ones, and `results`."""

    arguments: Any
    results: Any


@dataclass(frozen=True, eq=False)
class Host:
    """What it takes to run the host callbacks of a program: the callbacks of its first lowering, and what keeps them alive."""

    callbacks: tuple[Any, ...] = ()
    keepalive: Any = None


def abstract(leaf: Any) -> Any:
    """A leaf as shape and dtype, without data or sharding. (JAX would propagate a sharding through the trace into every op.)"""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=bool(getattr(leaf, "weak_type", False)))
    if isinstance(leaf, bool | int | float | complex):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def name_of(fun: Callable[..., Any]) -> str:
    """The name of a function in messages."""
    return str(getattr(fun, "__name__", None) or type(fun).__name__)


def trace(
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options | None = None,
    *,
    platform: str = "cpu",
    mesh: Mesh | None = None,
) -> Program:
    """Import `fun` for these arguments (arrays, numbers or `ShapeDtypeStruct`s) and this platform.

    Sharding constraints in the function may name axes of `mesh`. They are requests to partir, so the function is traced with
    all axes of type Auto, whatever type they have in the user's mesh. The result's `assumed` says what was assumed about roles.
    Raises ProgramError for a function that `jax.jit` refuses, for ordered effects, for a `state` that names what does not
    exist, and for values that are kept in host memory or computed on the host inside the function.
    """
    options = options or Options()
    static = signature_.static_names(fun, options.static_argnums, options.static_argnames, len(args))
    shapes = [arg if i in static[0] else jax.tree.map(abstract, arg) for i, arg in enumerate(args)]
    keywords = {k: v if k in static[1] else jax.tree.map(abstract, v) for k, v in kwargs.items()}
    traced, lowered = _lower(fun, shapes, keywords, options, platform, mesh)
    bridged = bridge(lowered.compiler_ir(), mesh, named_meshes(traced.jaxpr))
    info = jax.tree.leaves(lowered.args_info)
    paths = signature_.argument_paths(fun, shapes, keywords, static)
    typed = [(path, entry) for (path, _), entry in zip(paths, info, strict=True)]
    out = traced.out_info
    donated = [bool(entry.donated) for entry in info]
    flow = Flow(main_of(bridged.module))
    roots = signature_.argument_roots(fun, len(args))
    if options.state is None:
        found = inferred(typed, donated, roots, out, flow)
    else:
        found = stated(options.state, typed, roots, out, flow)
    raw = [i for i, (_, leaf) in enumerate(typed) if leaf.dtype == "uint32"]  # may be raw keys
    keys = keys_of(traced.jaxpr, raw) | {i for i, (_, leaf) in enumerate(typed) if str(leaf.dtype).startswith("key<")}
    own = signature_.signature_of(typed, donated, out, found.pairs, found.also | keys)
    moves = moves_of(traced.jaxpr, name_of(fun))
    results = tuple(replace(leaf, memory=moves.results.get(number, "")) for number, leaf in enumerate(own.results))
    constants = tuple(
        Leaf(("constant", str(i)), tuple(value.shape), str(value.dtype), "constant")
        for i, value in enumerate(bridged.constants)
    )
    return Program(
        bridged.module,
        Signature(own.arguments + constants, results, own.state),
        name_of(fun),
        platform,
        tuple(bridged.constants),
        Trees(jax.tree.structure(lowered.args_info), jax.tree.structure(out)),
        _host(lowered),
        notes=tuple(moves.notes),
        assumed=found.assumed,
        again=_again(fun, shapes, keywords, options, mesh),
        said_over=mesh if bridged.has_other_meshes else None,
    )


def _again(fun: Callable[..., Any], shapes: Any, keywords: Any, options: Options, mesh: Any) -> Any:
    """A function that imports `fun` again, for another platform and (if given) mesh; `enable_x64` is then set as it is now."""
    wide = jax.dtypes.canonicalize_dtype("float64") == "float64"

    def again(platform: str, other: Mesh | None = None) -> Program:
        with jax.enable_x64(wide):
            return trace(fun, shapes, keywords, options, platform=platform, mesh=other or mesh)

    return again


def _lower(
    fun: Callable[..., Any],
    shapes: Sequence[Any],
    keywords: Mapping[str, Any],
    options: Options,
    platform: str,
    mesh: Mesh | None,
) -> tuple[Any, Any]:
    """Trace and lower the function with the mesh as JAX's context mesh; if that fails, without one. (JAX refuses a `shard_map`
    over a mesh of its own within another context mesh.)

    Exceptions that the function itself raises are passed on; what JAX raises about the function becomes a ProgramError.
    """
    raised: list[BaseException] = []

    @functools.wraps(fun)
    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            raised.append(error)
            raise

    watched.__name__ = name_of(fun)
    errors: list[Exception] = []
    for context in [mesh, None] if mesh is not None else [None]:
        try:
            with importing(), _context_mesh(context):
                traced = jax.jit(watched, keep_unused=True, **options.keywords()).trace(*shapes, **keywords)
                _refuse_ordered(fun, traced)
                with warnings.catch_warnings():
                    # Which donated buffers can be reused depends on the shardings: `Traced.partition` warns of the others.
                    warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
                    return traced, traced.lower(lowering_platforms=(platform,))
        except PartirError:
            raise
        except Exception as error:
            errors.append(error)
    shown = errors[-1] if "context mesh" in str(errors[0]) else errors[0]  # not the error that our own context mesh caused
    if shown in raised and type(shown).__module__ != "jax.errors" and not isinstance(shown, jax.errors.JAXTypeError):
        raise shown
    raise ProgramError(_refused(fun, shown)) from shown


def _context_mesh(mesh: Mesh | None) -> Any:
    """A context in which JAX's mesh is `mesh`, all axes of type Auto; the empty mesh for None."""
    logical = mesh or Mesh()
    auto = AbstractMesh(tuple(logical.shape.values()), logical.names, axis_types=(AxisType.Auto,) * len(logical.axes))
    return jax.sharding.use_abstract_mesh(auto)


def _refuse_ordered(fun: Callable[..., Any], traced: Any) -> None:
    """Raise ProgramError for ordered effects: they demand one sequence of host calls, which devices in parallel cannot keep."""
    ordered = [effect for effect in traced.jaxpr.effects if "Ordered" in type(effect).__name__ or "ordered" in str(effect)]
    ordered = [effect for effect in ordered if "nordered" not in str(effect) and "Unordered" not in type(effect).__name__]
    if ordered:
        raise ProgramError(
            error_text(
                f"cannot partition {name_of(fun)}: it has ordered effects",
                where=", ".join(sorted({str(effect) for effect in ordered})),
                why="an ordered effect runs its host calls in one sequence, which devices in parallel do not have",
                hint="ordered=False on the callback or debug.print, or run it outside the partitioned function",
            )
        )


def _refused(fun: Callable[..., Any], error: Exception) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return error_text(
        f"cannot import {name_of(fun)}: jax.jit refuses it",
        why=f"{type(error).__name__}: {first}",
        hint="make jax.jit(f).lower(...) work first; the full error of JAX is above",
    )


def _host(lowered: Any) -> Host:
    """The host callbacks of a lowering.

    Custom calls name a callback by its position in a list that JAX keeps beside the module and does not make public: it is read
    from the private attribute `_lowering`. With a JAX release that does not have it, programs have no callbacks here.
    """
    compile_args = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    return Host(tuple(compile_args.get("host_callbacks") or ()), compile_args.get("keepalive"))
