"""What is asked for is what one gets: every pair of specs of two arguments, on three meshes, through fifteen small programs.

All asks are planned; of those on the large meshes every few are run, all of them by `make test-all`.
"""

import os

import jax
import obedience
import pytest

pytestmark = pytest.mark.jax

ALL = bool(os.environ.get("PARTIR_TEST_ALL"))
EVERY = {"8": 1, "4x2": 11, "2x2x2": 97}
"""Of how many asks one is run, by mesh."""
MOST = 361
"""How many asks are planned of one program on one mesh, evenly from all there are."""


@pytest.mark.parametrize("name", obedience.NAMES)
@pytest.mark.parametrize("mesh", EVERY)
def test_arguments_and_results_lie_as_asked(mesh, name, x64):
    fun, args = obedience.program(name)
    expected = jax.jit(fun)(*args)
    asks = list(obedience.asks(name, mesh))
    if not ALL and len(asks) > MOST:
        asks = [asks[k * len(asks) // MOST] for k in range(MOST)]
    traced = {}
    for number, ask in enumerate(asks):
        part = obedience.planned(name, mesh, ask, traced)
        if ALL or number % EVERY[mesh] == 0:
            obedience.run(name, part, ask, expected)
