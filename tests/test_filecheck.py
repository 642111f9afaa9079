"""Text in, text out: every `.mlir` file of tests/filecheck does what its RUN lines say.

`make test` runs them with lit, in a shell; here the same commands run within one process, in a second.
"""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import filecheck.main
import pytest

from partir.cli import opt

pytestmark = pytest.mark.core

FOLDER = Path(__file__).parent / "filecheck"
RUN = re.compile(r"^// RUN: (.*)$", re.MULTILINE)


def _filecheck(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as leaving:
        filecheck.main.main(["filecheck", *arguments])
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.mlir")), ids=lambda path: path.stem)
def test_filecheck(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = RUN.findall(path.read_text())

    assert lines
    for line in lines:
        text = ""
        for command in line.split(" | "):
            monkeypatch.setattr(sys, "stdin", io.StringIO(text))
            match shlex.split(command.replace("%s", str(path))):
                case ["sed", *arguments]:
                    text = subprocess.run(["sed", *arguments], check=True, capture_output=True, text=True).stdout
                case ["filecheck", *arguments]:
                    assert _filecheck(arguments) == 0, f"{line}\n{capsys.readouterr().err}"
                    text = ""
                case ["not", "partir", "opt", *arguments, "2>&1"]:
                    assert opt.main(arguments) == 1, line
                    text = "".join(capsys.readouterr())
                case ["partir", "opt", *arguments]:
                    code = opt.main(arguments)
                    text, errors = capsys.readouterr()
                    assert code == 0, f"{line}\n{errors}"
                case words:
                    pytest.fail(f"no command of a RUN line: {words}")
        assert command.startswith("filecheck"), line
