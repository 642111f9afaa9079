"""What README.md shows is what happens: its Python blocks print what follows them, and its table counts right."""

import contextlib
import io
import re
from itertools import pairwise
from pathlib import Path

import pytest

import partir
from partir.cli.inputs import schedule_of
from partir.viz.report import counts_text

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \|$", re.MULTILINE)

pytestmark = pytest.mark.jax


def test_python_blocks_print_what_follows_them() -> None:
    blocks = BLOCK.findall(README)
    expected = [text for (kind, _), (after, text) in pairwise(blocks) if (kind, after) == ("python", "text")]

    namespace: dict[str, object] = {}
    printed: list[str] = []
    for kind, text in blocks:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(text, namespace)
            printed.append(out.getvalue())

    assert len(printed) == 2
    assert printed == expected


def test_the_table_of_collectives_counts_right() -> None:
    model = partir.zoo.gpt(layers=4)
    traced = partir.jit(model.fun, mesh=partir.Mesh(data=4, model=2)).trace(*model.args)

    rows = dict(ROW.findall(README))

    assert len(rows) == 6
    assert {schedule: counts_text(traced.partition(schedule_of(schedule)).collectives) for schedule in rows} == rows


def test_the_files_it_points_to_are_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]

    assert links
    assert all((Path(__file__).parents[1] / link).exists() for link in links)
