"""`partir.jit`: the function that partitions itself when it is called, and its stages Traced -> Partitioned -> Lowered."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from partir.cost import registry as targets
from partir.cost.target import Target
from partir.errors import MeshError, ProgramError, error_text
from partir.frontend.signature import static_names
from partir.frontend.state import State
from partir.frontend.trace import Options, abstract, name_of
from partir.mesh import Mesh
from partir.runtime.processes import agree
from partir.setup import Schedule, Setup
from partir.sharding.strategy import Strategy
from partir.sharding.sums import dtype_name
from partir.stages import Partitioned, Traced
from partir.tactics.committed import layouts_of


class ReplanWarning(UserWarning):
    """Warns that the strategy of the first call does not fit new shapes: decisions that do not fit were left out."""


@dataclass(frozen=True)
class FirstPlan:
    """The decisions of the first call, which calls with other shapes replay.

    `undivided` is the number of decisions that did not fit then because a dim does not divide, and `free` are the numbers of
    the arguments that keep the sharding they come in with.
    """

    strategy: Strategy
    undivided: int
    free: frozenset[int]


class Jitted:
    """The function that `partir.jit` returns. It is called like the plain function, and partitions itself for new shapes.

    `_cache` has the partitioned functions for each structure, shapes, static arguments and mesh; there are several if arguments
    come in with different shardings. `_first` has the first plan of each program.
    """

    def __init__(self, fun: Callable[..., Any], options: Options, setup: Setup) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._options = options
        self._setup = setup
        self._cache: dict[Any, list[Partitioned]] = {}
        self._first: list[FirstPlan] = []

    def __repr__(self) -> str:
        return f"<partir.jit of {name_of(self._fun)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dynamic, keywords, static = self._dynamic(args, kwargs)
        leaves, tree = jax.tree.flatten((dynamic, keywords))
        fixed = tuple(args[i] for i in sorted(static[0]) if i < len(args))
        fixed += tuple((name, kwargs[name]) for name in sorted(kwargs) if name in static[1])
        key = (tree, tuple(map(_aval_key, leaves)), fixed, self._mesh_now())
        try:
            plans = self._cache.setdefault(key, [])
        except TypeError as error:
            raise ProgramError(
                error_text(
                    f"a static argument of {name_of(self._fun)} cannot be hashed",
                    why=str(error),
                    hint="a tuple instead of a list, a frozen dataclass instead of a dict",
                )
            ) from error
        found = next((part for part in plans if part.takes(leaves)), None)
        if found is None:
            traced = plans[0].traced.arriving(layouts_of(leaves)) if plans else self.trace(*args, **kwargs)
            found = self._partition(traced)
            plans.append(found)
        return found.run(dynamic, keywords)

    def _dynamic(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """The arguments and the keywords without the static ones, and the (positions, names) of static ones."""
        static = static_names(self._fun, self._options.static_argnums, self._options.static_argnames, len(args))
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in static[0])
        return dynamic, {name: value for name, value in kwargs.items() if name not in static[1]}, static

    def _partition(self, traced: Traced) -> Partitioned:
        """Partition for one call. The first call runs the schedule (all processes take process 0's result); calls with other
        shapes replay its strategy, with a warning for decisions that do not fit."""
        known = next((first for first in self._first if first.strategy.suits(traced.program)), None)
        if known is None:
            part = traced.partition()
            decided = Strategy.of(part.decided)
            agreed, free = agree(decided, part.free)
            if (agreed, free) != (decided, part.free):
                part = traced.replay(agreed, free)
            self._first.append(FirstPlan(agreed, len(part.decided.claims.undivided), free))
            return part
        part = traced.replay(known.strategy, known.free)
        misfits = part.decided.claims.undivided[known.undivided :]
        if misfits:
            warnings.warn(
                error_text(
                    f"the strategy of {name_of(self._fun)} does not fit its new shapes; state keeps its specs",
                    why="; ".join(map(str, misfits)),
                ),
                ReplanWarning,
                stacklevel=3,
            )
        return part

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Import the function for these arguments (arrays or ShapeDtypeStructs)."""
        setup = replace(self._setup, mesh=self._mesh_now())
        leaves = jax.tree.leaves(self._dynamic(args, kwargs)[:2])
        return Traced.of(self._fun, args, kwargs, options=self._options, setup=setup, leaves=leaves)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace, partition and lower: a `jax.stages.Lowered`."""
        return self.trace(*args, **kwargs).partition().lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results, as `jax.eval_shape` gives them."""
        return jax.jit(self._fun, **self._options.keywords()).eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget everything that was traced, planned and compiled."""
        self._cache.clear()
        self._first.clear()

    def _mesh_now(self) -> Any:
        if self._setup.mesh is not None:
            return self._setup.mesh
        found = jax.sharding.get_abstract_mesh()
        if found.empty:
            raise MeshError(
                error_text(
                    f"no mesh to partition {name_of(self._fun)} over",
                    hint="partir.jit(f, mesh=jax.make_mesh((4, 2), ('data', 'model')), ...), or call it under jax.set_mesh",
                )
            )
        try:
            return jax.sharding.get_mesh()
        except ValueError:  # JAX does not give the concrete mesh while it traces an outer jit
            return found


def _aval_key(leaf: Any) -> Any:
    shape = abstract(leaf)
    if isinstance(shape, jax.ShapeDtypeStruct):
        return shape.shape, shape.dtype, shape.weak_type
    return type(shape)


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    mesh: Any = None,
    schedule: Schedule | None = None,
    target: Target | str | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    state: State | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    reduce_dtype: Any = None,
) -> Any:
    """Partition `fun` over `mesh` by `schedule`. The result is called and staged like that of `jax.jit`.

    `mesh` is a `jax.sharding.Mesh` (any axis types), `AbstractMesh` or `partir.Mesh`; None is the mesh of `jax.set_mesh` at the
    time of the call. `schedule` is a list of tactics, strategies and actions; None searches for one. `target` is the machine
    that `estimate` and `report` price the result on: a name such as "tpu_v3" (`partir.targets.names()`) or a
    `partir.targets.Target`. `in_shardings` and `out_shardings` are trees of PartitionSpec, NamedSharding or None (open); they
    take precedence over the schedule. `reduce_dtype` is the dtype that floating-point values are reduced over devices in, on
    each axis for which no tactic says another (None: the dtype of the values). The other options mean what they mean in
    `jax.jit`. Arguments with another sharding than the planned one are moved. Raises PartirError with what is wrong, where,
    why, and what to try.

    `state` says which arguments are state: what a step reads and passes on to the next step. All others (except random keys)
    are then inputs. It is a list of arguments by number or path pattern (`["params", "opt_state"]`), each of which is paired
    with a result of its structure, if there is one; or a mapping from arguments to the numbers of their results
    (`{"params": 0, "opt_state": 1, "ema": None}`; None: it is only read). A state argument and its result get the same
    sharding. Without `state`, an argument is state if it is donated or updated, and a result has its structure; `report` has a
    line for what was assumed.
    """
    if fun is None:
        return functools.partial(
            jit,
            mesh=mesh,
            schedule=schedule,
            target=target,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            state=state,
            compiler_options=compiler_options,
            reduce_dtype=reduce_dtype,
        )
    if not callable(fun):
        raise ProgramError(error_text(f"partir.jit needs a function, not {fun!r}"))
    if mesh is not None:
        Mesh.of(mesh)
    options = Options(static_argnums, static_argnames, donate_argnums, donate_argnames, state)
    machine = None if target is None else targets.get(target)
    sums = None if reduce_dtype is None else dtype_name(reduce_dtype)
    setup = Setup(
        mesh=mesh,
        schedule=schedule,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        compiler_options=tuple((compiler_options or {}).items()),
        target=machine,
        reduce_dtype=sums,
    )
    return Jitted(fun, options, setup)
