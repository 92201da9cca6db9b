"""The code in the tutorials runs as it stands there."""

import re
from pathlib import Path

import pytest
from fresh_process import run_python

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str) -> str:
    """The Python blocks of a page, which continue each other."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))


@pytest.mark.slow
def test_training(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n" + blocks("tutorials/train.md"))
    done = run_python(str(script), DLBACKEND_FALLBACK="error")
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(re.findall(r"^accuracy ([\d.]+)$", done.stdout, re.MULTILINE)[0]) > 0.9
    assert (tmp_path / "checkpoint.pt").exists()


@pytest.mark.slow
def test_quantizing(tmp_path):
    script = tmp_path / "quantize.py"
    script.write_text(blocks("tutorials/quantize.md"))
    done = run_python(str(script), DLBACKEND_FALLBACK="error")
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = re.findall(r"^accuracy ([\d.]+) in float32, ([\d.]+) in int8$", done.stdout, re.MULTILINE)[0]
    assert float(before) > 0.95
    assert float(before) - float(after) <= 0.01
    assert len(re.findall(r"^\d (?:Conv2d|Linear): error \d\.\de-\d\d, ", done.stdout, re.MULTILINE)) == 3


@pytest.mark.parametrize("page", ["quickstart.md", "tutorials/template.md", "custom-kernels.md"])
def test_short_ones(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(blocks(page))
    done = run_python(str(script))
    assert done.returncode == 0, done.stderr[-3000:]
