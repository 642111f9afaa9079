"""MODEL: the zoo, and functions of the user's own."""

from pathlib import Path

import pytest

import partir
from partir.cli.model import model_of

pytestmark = pytest.mark.jax

OWN = """
import jax

def pair(n=4):
    def scale(x, y):
        return x * y
    return scale, (jax.ShapeDtypeStruct((n,), "float32"), jax.ShapeDtypeStruct((), "float32"))

class holder:
    model = pair

def broken():
    return 1 / 0

def number():
    return 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user in the current directory."""
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("import jax\nraise RuntimeError('not today')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_models"


def test_a_model_of_the_zoo_with_settings() -> None:
    example = model_of("mlp", {"widths": (8, 4), "batch": 2})

    assert example.args[2]["inputs"].shape == (2, 8)


def test_a_function_and_its_arguments(own: str) -> None:
    example = model_of(f"{own}:pair", {"n": 6})

    assert example.name == "scale"
    assert example.args[0].shape == (6,)
    assert model_of(f"{own}:holder.model", {}).name == "scale"


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("gtp", {}, 'no model "gtp"\n  why     the zoo has .*, gpt, .*\n  try     gpt, '),
        ("gpt", {"layer": 2}, "gpt has no setting layer\n  why     its settings are layers, .*\n  try     --set layers="),
        ("gpt", {"heads": 3}, "d_model 256 does not divide by heads 3"),
        ("own_models:pear", {}, 'no function "pear" in own_models\n  try     one of pair'),
        ("own_models:number", {}, "own_models:number returns no model\n  why     it returned int"),
        ("own_models:broken", {}, r"where   .*own_models.py:13, in broken\n  why     ZeroDivisionError: division by zero"),
        (
            "own_broken:model",
            {},
            r"cannot import own_broken .*\n  where   .*own_broken.py:2, .*\n  why     RuntimeError: not today",
        ),
        ("own_missing:model", {}, "No module named 'own_missing'"),
    ],
)
def test_what_is_not_a_model_says_why(own: str, name: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(partir.PartirError, match=said):
        model_of(name, settings)
