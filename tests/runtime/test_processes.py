"""A job of two processes on loopback runs what process 0 decided, on numpy inputs, and agrees with one device."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jax, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_two_processes_train_one_model() -> None:
    script = Path(__file__).parent / "two_processes.py"
    port = str(free_port())

    jobs = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(number)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for number in range(2)
    ]
    outputs = [job.communicate(timeout=300)[0] for job in jobs]

    assert [job.returncode for job in jobs] == [0, 0], "\n".join(outputs)
    kept = [re.search(r"kept (.*)", text) for text in outputs]
    assert [m and m.group(1) for m in kept] == 2 * ["[('model', None), (None, 'data')]"], outputs
    found = [re.search(r"process (\d): devices (\d+), loss ([\d.]+), spec (.*)", text) for text in outputs]
    assert all(found), outputs
    assert {m.group(2) for m in found if m} == {"8"}
    assert len({m.group(3) for m in found if m}) == 1
    assert len({m.group(4) for m in found if m}) == 1
    assert "data" in (found[0].group(4) if found[0] else "")
