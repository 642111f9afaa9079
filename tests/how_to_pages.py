"""The code of a how-to page, so that its test runs what the reader reads."""

import re
from pathlib import Path
from typing import Any

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"


def code_of(page: str, number: int = 0) -> str:
    """The text of the `number`th ```python block of `docs/how-to/<page>.md`."""
    return re.findall(r"^```python\n(.*?)^```", (HOW_TO / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)[number]


def names_of(page: str, number: int = 0) -> dict[str, Any]:
    """What that block defines, by name: it is executed as a module of its own."""
    names: dict[str, Any] = {"__name__": page.replace("-", "_")}
    exec(compile(code_of(page, number), str(HOW_TO / f"{page}.md"), "exec"), names)
    return names
