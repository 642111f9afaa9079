"""What is asked for is what one gets: every pair of specs of two arguments, on three meshes, through fifteen small programs.

Of the many asks on the large meshes some are planned, and of those some are run; `make test-all` plans all, and runs all but
most of those on the largest mesh.
"""

import jax
import obedience
import pytest
from thinned import ALL

pytestmark = pytest.mark.jax

EVERY = {"8": 1, "4x2": 1, "2x2x2": 11} if ALL else {"8": 1, "4x2": 11, "2x2x2": 97}
"""Of how many asks that are planned one is run, by mesh."""
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
        if number % EVERY[mesh] == 0:
            obedience.run(name, part, ask, expected)
