"""Makes a device-local program a JAX function: a primitive inside `shard_map` inside `jit`, on the user's own mesh.

The jitted body reshards its arguments and enters `shard_map`. So one function works for every type of mesh axis and every kind
of argument; it donates, lowers ahead of time, and can be called under an outer jit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func as func_dialect
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from partir.errors import MeshError, ProgramError, TransformError, error_text
from partir.frontend.trace import Host, Trees
from partir.mesh import Mesh
from partir.program import Leaf, Program
from partir.runtime.donation import check_given_once
from partir.runtime.emit import Local
from partir.sharding.layout import Layout, local_shape, spec_of

_call_p = Primitive("partir_call")
_call_p.multiple_results = True


@dataclass(frozen=True, eq=False)
class Callee:
    """The parameter of the primitive: the local program, the local types of its results (`out`), its host callbacks, and the
    name of the user's function."""

    local: Local
    out: tuple[Any, ...]
    host: Host
    name: str


@_call_p.def_abstract_eval
def _abstract(*_: Any, callee: Callee) -> Any:
    return list(callee.out)


def _lower(ctx: Any, *args: Any, callee: Callee) -> Any:
    module_context = ctx.module_context
    sub = ir.Module.parse(callee.local.text)
    _renumber(sub, [module_context.new_channel() for _ in range(callee.local.channels)])
    _rebase_callbacks(sub, module_context, callee.host)
    name = mlir.merge_mlir_modules(module_context.module, "partir_local", sub, dst_symtab=module_context.symbol_table)
    made = module_context.symbol_table[name]
    call = func_dialect.CallOp(made.type.results, ir.FlatSymbolRefAttr.get(name), list(args))
    return call.results


def _renumber(module: Any, channels: Sequence[int]) -> None:
    """Give the collectives channels that are free in the module that they are merged into."""
    if list(channels) == list(range(1, len(channels) + 1)):
        return
    numbers = iter(channels)

    def visit(op: Any) -> Any:
        if "channel_handle" in op.attributes:
            handle = f"#stablehlo.channel_handle<handle = {next(numbers)}, type = 1>"
            op.attributes["channel_handle"] = ir.Attribute.parse(handle)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _rebase_callbacks(module: Any, module_context: Any, host: Host) -> None:
    """Append the program's host callbacks to those of the module that JAX is lowering, and adjust the indices in custom calls.

    A custom call names its callback by the index in a list that JAX keeps beside the module.
    """
    if not host.callbacks:
        return
    base = len(module_context.host_callbacks)
    module_context.host_callbacks.extend(host.callbacks)
    module_context.add_keepalive(host)

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.custom_call" and "mhlo.backend_config" in op.attributes:
            config = ir.DictAttr(op.attributes["mhlo.backend_config"])
            if "index" in config:
                index = ir.IntegerAttr(config["index"])
                entries = {item.name: item.attr for item in config}
                entries["index"] = ir.IntegerAttr.get(index.type, index.value + base)
                op.attributes["mhlo.backend_config"] = ir.DictAttr.get(entries)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


mlir.register_lowering(_call_p, _lower)


def call(callee: Callee, *args: Any) -> list[Any]:
    """Run an emitted program on local arrays (or tracers) of the shapes that it expects."""
    return _call_p.bind(*args, callee=callee)


def _refuse(what: str, instead: str) -> Callable[..., Any]:
    def rule(*_: Any, callee: Callee, **__: Any) -> Any:
        raise TransformError(
            error_text(
                f"cannot take {what} of the partitioned function {callee.name}",
                why="it is compiled to a program per device, which JAX cannot transform any more",
                hint=f"{instead} the plain function and partition the result: partir.jit({instead.split()[0]}(f), ...)",
            )
        )

    return rule


ad.primitive_jvps[_call_p] = _refuse("a gradient", "jax.grad of")
batching.primitive_batchers[_call_p] = _refuse("vmap", "jax.vmap of")


def concrete_mesh(mesh: Any) -> jax.sharding.Mesh:
    """A JAX mesh of devices: the given one if it has devices, else one of JAX's first devices.

    Raises MeshError if there are too few.
    """
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh
    logical = Mesh.of(mesh)
    devices = jax.devices()
    if logical.size > len(devices):
        sizes = " x ".join(f"{name}={size}" for name, size in logical.axes)
        raise MeshError(
            error_text(
                f"the mesh {sizes} needs {logical.size} devices",
                why=f"there are {len(devices)} {devices[0].platform} devices",
                hint="planning and reports need none; to run on virtual devices set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={logical.size} before jax starts",
            )
        )
    types = getattr(mesh, "axis_types", None) or (jax.sharding.AxisType.Auto,) * len(logical.axes)
    shape = tuple(size for _, size in logical.axes)
    grid = np.array(devices[: logical.size]).reshape(shape)
    return jax.sharding.Mesh(grid, logical.names, axis_types=types)


@dataclass(frozen=True, eq=False)
class Executable:
    """A program ready to run: `local` on the devices of `mesh`, with the layouts of its arguments and results."""

    program: Program
    local: Local
    mesh: jax.sharding.Mesh
    arguments: tuple[Layout, ...]
    results: tuple[Layout, ...]
    compiler_options: tuple[tuple[str, Any], ...] = ()

    @property
    def trees(self) -> Trees:
        trees = self.program.trees
        assert isinstance(trees, Trees)
        return trees

    @property
    def in_specs(self) -> list[PartitionSpec]:
        """A PartitionSpec per flat argument; closed-over arrays (the program's constants) are last."""
        return [_spec(layout, leaf) for layout, leaf in zip(self.arguments, self.program.signature.arguments, strict=True)]

    @property
    def out_specs(self) -> list[PartitionSpec]:
        """A PartitionSpec per result."""
        return [_spec(layout, leaf) for layout, leaf in zip(self.results, self.program.signature.results, strict=True)]

    @cached_property
    def in_shardings(self) -> list[NamedSharding]:
        leaves = self.program.signature.arguments
        return [_sharding(self.mesh, spec, leaf) for spec, leaf in zip(self.in_specs, leaves, strict=True)]

    @cached_property
    def out_shardings(self) -> list[NamedSharding]:
        leaves = self.program.signature.results
        return [_sharding(self.mesh, spec, leaf) for spec, leaf in zip(self.out_specs, leaves, strict=True)]

    @cached_property
    def out_avals(self) -> tuple[Any, ...]:
        """The local (per-device) types of the results."""
        sizes = Mesh.of(self.mesh).axes
        return tuple(
            ShapedArray(local_shape(layout, sizes)[: len(leaf.shape)], dtype_of(leaf.dtype))
            for layout, leaf in zip(self.results, self.program.signature.results, strict=True)
        )

    def body(self, *flat: Any) -> list[Any]:
        """The function on flat global arguments, to be traced under jit."""
        flat = (*flat, *self.program.constants)
        callee = Callee(self.local, self.out_avals, self.program.host or Host(), self.program.name)
        leaves = self.program.signature.arguments
        placed = [_enter(x, sharding, leaf) for x, sharding, leaf in zip(flat, self.in_shardings, leaves, strict=True)]
        results = jax.shard_map(
            lambda *xs: call(callee, *xs),
            mesh=self.mesh,
            in_specs=tuple(self.in_specs),
            out_specs=self.out_specs,
            check_vma=False,
        )(*placed)
        return [
            jax.device_put(y, sharding) if leaf.memory else y
            for y, sharding, leaf in zip(results, self.out_shardings, self.program.signature.results, strict=True)
        ]

    @cached_property
    def jitted(self) -> Any:
        """The jitted function, with the user's pytrees (static arguments left out) and donation."""

        def call(*args: Any, **kwargs: Any) -> Any:
            flat = jax.tree.leaves((args, kwargs))
            return jax.tree.unflatten(self.trees.results, self.body(*flat))

        call.__name__ = call.__qualname__ = self.program.name
        numbers, names = self._donated()
        options = dict(self.compiler_options)
        return jax.jit(
            call,
            donate_argnums=numbers,
            donate_argnames=names,
            keep_unused=True,
            compiler_options=options or None,
        )

    def _donated(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Positions and names of donated arguments. An argument is donated if any of its leaves is."""
        flags = [leaf.donated for leaf in self.program.signature.arguments]
        args, kwargs = jax.tree.unflatten(self.trees.arguments, flags[: self.trees.arguments.num_leaves])
        numbers = tuple(i for i, arg in enumerate(args) if any(jax.tree.leaves(arg)))
        names = tuple(name for name, arg in kwargs.items() if any(jax.tree.leaves(arg)))
        return numbers, names

    def misplaced(self, flat: Sequence[Any]) -> list[int]:
        """The numbers of the arguments whose sharding is not the planned one. Tracers are not: an outer jit moves them."""
        return [
            number
            for number, (x, sharding) in enumerate(zip(flat, self.in_shardings, strict=False))
            if not (isinstance(x, Tracer) or (isinstance(x, jax.Array) and _has_sharding(x, sharding)))
        ]

    @cached_property
    def _donates(self) -> bool:
        return any(leaf.donated for leaf in self.program.signature.arguments)

    def place(self, flat: Sequence[Any]) -> list[Any]:
        """The arguments, those with another sharding moved to the planned one."""
        placed = list(flat)
        for number in self.misplaced(flat):
            placed[number] = jax.device_put(placed[number], self.in_shardings[number])
        return placed

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run on the user's arguments (without static ones). Raises ProgramError for an array that is donated and passed
        twice."""
        flat, tree = jax.tree.flatten((tuple(args), kwargs))
        if self._donates:
            check_given_once(self.program, flat)
        args, kwargs = jax.tree.unflatten(tree, self.place(flat))
        return self.jitted(*args, **kwargs)

    def lower(self) -> Any:
        """The `jax.stages.Lowered` of the function, for arguments with the planned shardings."""
        leaves = self.program.signature.arguments[: self.trees.arguments.num_leaves]
        shapes = [
            jax.ShapeDtypeStruct(leaf.shape, dtype_of(leaf.dtype), sharding=sharding)
            for leaf, sharding in zip(leaves, self.in_shardings, strict=False)
        ]
        args, kwargs = jax.tree.unflatten(self.trees.arguments, shapes)
        return self.jitted.lower(*args, **kwargs)


def check_arguments(program: Program, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise ProgramError, naming every argument that differs, unless structure, shapes and dtypes are as traced."""
    leaves = program.signature.arguments[: program.trees.arguments.num_leaves]
    given, tree = jax.tree.flatten((tuple(args), kwargs))
    problems: list[str] = []
    if tree != program.trees.arguments:
        problems.append(f"the arguments have the structure {tree}, {program.trees.arguments} was traced")
    else:
        for leaf, value in zip(leaves, given, strict=True):
            try:
                aval = jax.typeof(value)
            except TypeError:
                problems.append(f"{leaf.name} is {type(value).__name__}, not an array")
                continue
            if tuple(aval.shape) != leaf.shape or str(aval.dtype) != leaf.dtype:
                problems.append(f"{leaf.name} is {aval.dtype}{list(aval.shape)}, {leaf.dtype}{list(leaf.shape)} was traced")
    if problems:
        raise ProgramError(
            error_text(
                f"{program.name} was partitioned for other arguments",
                why="; ".join(problems),
                hint="partir.jit(f, ...) itself takes any shapes: it plans for new ones",
            )
        )


def _has_sharding(x: jax.Array, sharding: NamedSharding) -> bool:
    """Whether an array has this sharding, or an equivalent one."""
    return x.sharding == sharding or (x.committed and x.sharding.is_equivalent_to(sharding, x.ndim))


def _spec(layout: Layout, leaf: Leaf) -> PartitionSpec:
    """The spec of a leaf. The layout of a random key also has the dims of its raw words, which the key itself does not have."""
    return PartitionSpec(*spec_of(layout[: len(leaf.shape)]))


def _sharding(mesh: jax.sharding.Mesh, spec: PartitionSpec, leaf: Leaf) -> NamedSharding:
    return NamedSharding(mesh, spec, memory_kind=leaf.memory or None)


def _enter(x: Any, sharding: NamedSharding, leaf: Leaf) -> Any:
    """A value with the sharding that `shard_map` requires of it.

    Axes of type Explicit are part of a value's type and must match, so the value is resharded over them. For other axes the
    compiler reshards, except if the value's type names another mesh: then it is moved to ours. A value that is kept in host
    memory is moved to the device.
    """
    if leaf.memory:
        sharding = NamedSharding(sharding.mesh, sharding.spec)
        x = jax.device_put(x, sharding)
    explicit = sharding.mesh.explicit_axes
    if not explicit:
        theirs = getattr(getattr(jax.typeof(x), "sharding", None), "mesh", None)
        if theirs is None or not theirs.explicit_axes:
            return x
        if jax.__version_info__ < (0, 11) and Mesh.of(theirs) != Mesh.of(sharding.mesh):
            raise MeshError(
                error_text(
                    f"{leaf.name} lies on another mesh than it is partitioned over",
                    where=f"inside an outer jit, which sees it on {Mesh.of(theirs)!r}",
                    why=f"jax {jax.__version__} cannot move it there to the axes of type Auto of {Mesh.of(sharding.mesh)!r}",
                    hint="jax.device_put it before the outer jit, axes of type Explicit, or a newer jax",
                )
            )
        return jax.device_put(x, sharding)
    spec = [
        tuple(axis for axis in ((entry,) if isinstance(entry, str) else entry or ()) if axis in explicit)
        for entry in sharding.spec
    ]
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*(axes or None for axes in spec))))


def dtype_of(name: str) -> Any:
    """A dtype by name, random-key types included."""
    if name.startswith("key<"):
        return jax.random.key(0, impl={"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}[name[4:-1]]).dtype
    return jax.dtypes.canonicalize_dtype(name) if name.startswith(("int", "uint", "float", "complex")) else np.dtype(name)
