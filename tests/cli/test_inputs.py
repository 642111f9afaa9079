"""Meshes, settings and schedules as text."""

import pytest
from jax.sharding import PartitionSpec

import partir
from partir.cli.inputs import known_items, mesh_of, schedule_of, settings_of
from partir.sharding.actions import KINDS

pytestmark = pytest.mark.jax


def test_mesh_keeps_the_order_of_its_axes() -> None:
    assert mesh_of("model=2, data=4") == partir.Mesh(model=2, data=4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data", '"data" is not a name and a number'),
        ("data=four", '"data=four" is not a name and a number'),
        ("data=4,,model=2", '"" is not a name and a number'),
        ("data=0", "has size 0"),
        ("data=4,data=2", "not all different"),
    ],
)
def test_a_bad_mesh_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(partir.MeshError, match=said):
        mesh_of(text)


def test_settings_are_literals_or_text() -> None:
    found = settings_of(["layers=4", "clip=1.0", "tied=True", "norm=rms", "widths=(8, 4)", "kv_heads=None"])

    assert found == {"layers": 4, "clip": 1.0, "tied": True, "norm": "rms", "widths": (8, 4), "kv_heads": None}


@pytest.mark.parametrize("text", ["layers", "layers=", "=4", "a-b=4"])
def test_a_bad_setting_is_named(text: str) -> None:
    with pytest.raises(partir.ProgramError, match=f'cannot read the setting "{text}"'):
        settings_of([text])


@pytest.mark.parametrize(
    "text",
    [
        "DataParallel('data'), Megatron('model')",
        "[partir.DataParallel('data'), partir.Megatron(axis='model')]",
        "DataParallel('data'),\n Megatron('model'),",
    ],
)
def test_schedule_as_in_python(text: str) -> None:
    assert schedule_of(text) == [partir.DataParallel("data"), partir.Megatron("model")]


def test_schedule_with_everything_a_tactic_takes() -> None:
    text = "Manual({'params/**/w': P(None, ('x', 'y'))}), Manual(FIRST_DIVISIBLE_DIM, axis='x'), "
    text += "Replicate('a/*', 'x'), ZeRO('x', stage=3), "
    text += "Tile('params/w', 1, 'x')"

    assert schedule_of(text) == [
        partir.Manual({"params/**/w": PartitionSpec(None, ("x", "y"))}),
        partir.Manual(partir.FIRST_DIVISIBLE_DIM, axis="x"),
        partir.Replicate("a/*", "x"),
        partir.ZeRO("x", stage=3),
        partir.Tile("params/w", 1, "x"),
    ]


def test_every_tactic_and_action_can_be_named() -> None:
    public = {name for name in partir.__all__ if callable(getattr(getattr(partir, name), "actions", None))}

    assert set(known_items()) == public - {"Tactic"} | {kind.__name__ for kind in KINDS.values()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Megatrn('model')", 'column 1: .*\n  why     there is no tactic "Megatrn"\n  try     Megatron'),
        ("DataParallel('data'), Megatron()", r"column 23: Megatron\(\)\n  why     .*missing 1 required"),
        ("Megatron('model', size=2)", "unexpected keyword argument 'size'"),
        ("Megatron(model)", "model is not a literal"),
        ("Megatron(**{'axis': 'model'})", "not a literal argument"),
        ("Megatron", r"not a call of a tactic\n  try     Megatron\('data'\)"),
        ("Megatron('model'", "cannot read the schedule"),
        ("Megatron('a')] + [Megatron('b')", "brackets do not match"),
        ("__import__('os').system('true')", "not a call of a tactic"),
        ("Megatron(__import__('os').name)", "is not a literal"),
        ("Manual({'w': P(axes='x')})", "without keywords"),
        ("Manual({'w': open('f')})", "is not a literal"),
    ],
)
def test_a_bad_schedule_says_where_and_runs_nothing(text: str, said: str) -> None:
    with pytest.raises(partir.ProgramError, match=said):
        schedule_of(text)
