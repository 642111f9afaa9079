"""The programs that other tests rely on do what they should without partir."""

import jax
import numpy as np
import pytest
from programs import PROGRAMS


@pytest.mark.jax
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_on_one_device(name: str, x64: None) -> None:
    program = PROGRAMS[name]

    results = jax.tree.leaves(jax.jit(program.fun)(*program.concrete(dtype="float64")))

    assert all(np.isfinite(result).all() for result in results)
    assert all(result.dtype == np.float64 for result in results)
