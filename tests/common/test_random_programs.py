"""Whatever is written and whatever is decided, the numbers stay: 100 random programs under random actions (`make test-all`:
200) equal one device.

`benchmarks/random_programs.py` runs as many as one likes, and makes small what fails. What it found stands below, each with
its whole kind.
"""

from random import Random

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equal import assert_same, mesh_of
from hypothesis import strategies as st
from jax import lax
from random_actions import draw_actions, partitioned
from random_cases import RandomCase, asking_case, check, minimised, random_case
from random_ops_indexed import OPS
from random_programs import RandomProgram, random_program
from thinned import ALL

import partir
from partir.mesh import Mesh
from partir.runtime.interpret import interpret
from partir.sharding import plan
from partir.sharding.actions import Replicate, Tile
from partir.sharding.assignment import Assignment

pytestmark = pytest.mark.jax

CHUNKS, CASES = 20, 10 if ALL else 5
"""A test for each chunk, so that workers can share them. In every other one layouts are asked for."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs_under_random_actions_equal_one_device(chunk, x64):
    done = []

    # Shrinking compiles hundreds of programs: `random_cases.minimised` is faster, and made for this.
    @hypothesis.seed(chunk)
    @hypothesis.settings(
        max_examples=CASES, phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(st.builds(asking_case if chunk % 2 else random_case, st.randoms(use_true_random=False)))
    def equal(case):
        done.append(case)
        check(case, core=len(done) % 4 == 0)

    equal()
    assert len(done) == CASES


# ---- the generator itself


def test_programs_of_a_seed_are_the_same_and_of_others_different(x64):
    sources = [random_program(Random(seed), OPS).source for seed in (1, 1, 2)]

    assert sources[0] == sources[1] != sources[2]


def test_every_op_is_drawn_and_every_dtype(x64):
    programs = [random_program(Random(seed), OPS) for seed in range(200)]

    assert {name for program in programs for name in program.ops} == {op.name for op in OPS}
    dtypes = {str(x.dtype) for program in programs for x in program.arguments.values()}
    assert dtypes >= {"float64", "float32", "bfloat16", "float16", "int8", "uint8", "int32", "bool", "complex128"}
    assert {program.gradient for program in programs} == {"", "loss", "jax.checkpoint(loss)"}


def test_a_wrong_program_is_found_and_made_small(x64, monkeypatch):
    """Sums that are never put together."""
    lines = (
        ("v2 = jnp.sin(v1)", frozenset({"v2"})),
        ("v3 = v2 @ v4", frozenset({"v3"})),
        ("v5 = jnp.tanh(v3)", frozenset({"v5"})),
        ("v6 = v1[:2]", frozenset({"v6"})),
    )
    x = np.arange(64.0).reshape(8, 8) / 64
    program = RandomProgram({"v1": x, "v4": x + 1}, lines, ("v5", "v6"))
    actions = (Tile("v4", 0, "data"), Replicate("v1", "data"))
    case = RandomCase(program, "8", 0, actions)
    check(case, core=True)

    reduction = plan.Reduction
    monkeypatch.setattr(plan, "Reduction", lambda value, _, before, after: reduction(value, (), before, after))
    with pytest.raises(AssertionError, match="should be") as raised:
        check(case)
    small = minimised(case)

    assert "v3 = v2 @ v4" in raised.value.__notes__[0]
    assert [text for text, _ in small.program.lines] == ["v3 = v2 @ v4"]
    assert small.program.results == ("v3",)
    assert len(small.actions) == 1


# ---- what it found: each program under chosen and drawn actions, on meshes in turn


def invariant_sum(run):
    """A loop that reads a sum from before it, and hands it on unchanged."""
    return lambda x, w, c: run(x @ w, c)


FOUND = {
    # An unreduced sum that a loop carries unchanged asked itself how it would like to be reduced.
    "sum read in scan": invariant_sum(lambda s, c: lax.scan(lambda c, r: (jnp.tanh(c + s), (s * r).sum(0)), c, c)),
    "sum read in fori": invariant_sum(lambda s, c: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) + s, c)),
    "sum read in while": invariant_sum(lambda s, c: lax.while_loop(lambda c: c.sum() < 99, lambda c: jnp.abs(c) + s * s, c)),
    "sum read in the condition": invariant_sum(lambda s, c: lax.while_loop(lambda c: c.sum() < s.sum(), lambda c: c + 9, c)),
    "sum read by one of two": invariant_sum(
        lambda s, c: lax.scan(lambda c, _: (lax.scan(lambda d, _: (jnp.sin(d) * s, None), c, None, 2)[0], None), c, None, 2)
    ),
    "sum read and returned": invariant_sum(lambda s, c: (s, lax.scan(lambda c, r: (c, r @ s), c, c))),
    # Slices and pads of nothing, as associative scans make them, divided by their size.
    "nothing sliced": lambda x, w, c: (
        lax.slice(jnp.sin(x)[None, :0], (0, 0, 1), (1, 0, 5)),
        lax.slice(x[None][:0], (0, 1, 0), (0, 5, 8)),
    ),
    "nothing padded": lambda x, w, c: (jnp.pad(x[None][:0], ((0, 0), (1, 2), (0, 0))), jnp.pad(x[:, :0], ((8, 0), (0, 0)))),
    "nothing scanned": lambda x, w, c: (lax.cumlogsumexp(x[:1], 0), lax.cumlogsumexp(x, 0), lax.cumsum(x[:0], 1)),
}
MESHES = ("8", "4x2", "2x2x2")


@pytest.mark.parametrize("name", FOUND)
def test_what_random_programs_found(name, x64, rng):
    args = [rng.standard_normal((8, 8)) for _ in range(3)]
    expected = jax.jit(FOUND[name])(*args)
    chosen = [(Tile("x", dim, "data"), Tile("w", 1, "data")) for dim in (0, 1)]
    for number in range(9):
        traced = partir.jit(FOUND[name], mesh=mesh_of(MESHES[number % 3])).trace(*args)
        drawn = draw_actions(np.random.default_rng(number), Assignment(traced.structure, Mesh.of(traced.mesh)))
        assert_same(partitioned(traced, chosen[number] if number < 2 else drawn)(*args), expected)


@pytest.mark.parametrize(("name", "start"), [("add", 3.0), ("max", 1.0), ("min", -1.0), ("mul", 2.0)])
def test_a_reduction_over_one_element_counts_where_it_starts(name, start, x64):
    """XLA on one device forgets the start (jax 0.10.2 and 0.12): plain jit is wrong here, so numpy says what is right."""
    x = np.arange(-4.0, 4.0).reshape(8, 1) / 2

    def fun(x):
        return lax.reduce(x, np.float64(start), getattr(lax, name), [1])

    combine = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[name]
    traced = partir.jit(fun, mesh=mesh_of("4x2")).trace(x)
    for actions in ([Tile("x", 0, "data")], [Tile("x", 1, "data")], []):
        part = partitioned(traced, actions)
        assert_same(part(x), combine(x[:, 0], start))
        assert_same(interpret(part.core, [x])[0], combine(x[:, 0], start))
