"""What README.md and docs/architecture.md show is what happens: Python blocks print what follows them, tables count right."""

import contextlib
import io
import re
from itertools import pairwise
from pathlib import Path

import pytest

import partir
from partir.cli.inputs import schedule_of
from partir.viz.report import counts_text

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \|$", re.MULTILINE)

pytestmark = pytest.mark.jax


@pytest.mark.parametrize(("page", "count"), [("README.md", 2), ("docs/architecture.md", 1)])
def test_python_blocks_print_what_follows_them(page: str, count: int) -> None:
    blocks = BLOCK.findall((ROOT / page).read_text())
    expected = [text for (kind, _), (after, text) in pairwise(blocks) if (kind, after) == ("python", "text")]

    namespace: dict[str, object] = {}
    printed: list[str] = []
    for kind, text in blocks:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(text, namespace)
            printed.append(out.getvalue())

    assert len(printed) == count
    assert printed == expected


def test_the_table_of_collectives_counts_right() -> None:
    model = partir.zoo.gpt(layers=4)
    traced = partir.jit(model.fun, mesh=partir.Mesh(data=4, model=2)).trace(*model.args)

    rows = dict(ROW.findall(README))

    assert len(rows) == 6
    assert {schedule: counts_text(traced.partition(schedule_of(schedule)).collectives) for schedule in rows} == rows


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_it_points_to_are_there(page: Path) -> None:
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]

    assert [link for link in links if link and not (page.parent / link).exists()] == []
