"""Which scopes a user's pattern means."""

import pytest

from partir.sharding.scopes import in_scope, without_numbers

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("pattern", "inside"),
    [
        ("layer_1", True),
        ("attention", True),
        ("layer_1/attention", True),
        ("layer_*", True),
        ("layer", False),
        ("query/layer_1", False),
    ],
)
def test_a_pattern_names_levels(pattern, inside):
    assert in_scope(pattern, "model/layer_1/attention/query") == inside


def test_layers_are_alike_without_their_numbers():
    assert without_numbers("layer_0/head_12") == without_numbers("layer_3/head_4") == "layer_*/head_*"
