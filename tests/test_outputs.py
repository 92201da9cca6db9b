"""Files that tools are to write are checked before the work begins, and interrupted runs keep what they measured."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlbackend import outputs
from dlbackend.__main__ import main
from dlbackend.tools import bench

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
import make_pack  # noqa: E402

import benchmarks.__main__ as suites  # noqa: E402
from benchmarks import finding, first_choice, settling  # noqa: E402

PICTURES = (["bench"], ["validate"], ["tune", "resnet18"])
COMMANDS = [
    *((main, command) for command in (["bench", "--json"], ["validate", "--json"], ["tune", "resnet18", "--out"])),
    *((main, [*command, "--picture"]) for command in PICTURES),
    (main, ["cache", "export"]),
    *((run, ["--json"]) for run in (suites.main, finding.main, first_choice.main, settling.main)),
    (make_pack.main, ["--out"]),
]


def refused(main, arguments, monkeypatch, capsys) -> str:
    """The line with which a command ends at once."""
    monkeypatch.setattr(sys, "argv", ["tool", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("main", "command"), COMMANDS, ids=lambda value: getattr(value, "__module__", None))
def test_what_cannot_be_written_is_refused_at_once(main, command, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("a file is no folder")
    said = refused(main, [*command, str(tmp_path / "file" / "out.png")], monkeypatch, capsys)
    assert f"cannot be written, name another place: '{tmp_path / 'file'}' is no folder" in said
    if main is not make_pack.main:
        assert "it is a folder" in refused(main, [*command, str(tmp_path)], monkeypatch, capsys)


def test_op_db_refuses_at_once(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "op_db.py"), "--only", "add", "--out", str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "it is a folder" in done.stderr


@pytest.mark.parametrize("command", PICTURES, ids=lambda command: command[0])
def test_pictures_are_refused_without_matplotlib(command, monkeypatch, capsys, tmp_path):
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "matplotlib.figure", None)
        said = refused(main, [*command, "--picture", str(tmp_path / "p.png")], missing, capsys)
    assert "pip install matplotlib" in said
    said = refused(main, [*command, "--picture", str(tmp_path / "p.jason")], monkeypatch, capsys)
    assert "end it with" in said
    assert ".png" in said


def test_missing_folders_are_made_and_no_file(tmp_path):
    path = tmp_path / "new" / "folder" / "out.json"
    assert outputs.file(str(path)) == path
    assert list(path.parent.iterdir()) == []
    path.write_text("kept")
    assert outputs.file(str(path)) == path
    assert path.read_text() == "kept"
    assert outputs.picture(str(tmp_path / "pictures" / "p.PNG")).parent.is_dir()
    folder = tmp_path / "packs"
    assert outputs.file_or_folder(f"{folder}/") == folder
    assert folder.is_dir()
    assert outputs.file_or_folder(str(folder)) == folder
    assert outputs.file_or_folder(str(tmp_path / "x.pack")).parent.is_dir()
    assert not (tmp_path / "x.pack").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_permissions_are_checked(tmp_path):
    (tmp_path / "file").touch(0o400)
    tmp_path.chmod(0o500)
    for name in ("file", "new"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"[Pp]ermission denied"):
            outputs.file(str(tmp_path / name))


def test_an_interrupted_bench_keeps_its_rows(monkeypatch, tmp_path):
    def measure(net, *_):
        if net == "second":
            raise KeyboardInterrupt
        return {"net": net, "error": "only a test"}

    monkeypatch.setattr(bench, "Worker", lambda *_: None)
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["tool", "bench", "--only", "first,second", "--json", str(tmp_path / "b.json")])
    with pytest.raises(KeyboardInterrupt):
        main()
    assert [row["net"] for row in json.loads((tmp_path / "b.json").read_text())["nets"]] == ["first"]


def test_interrupted_benchmarks_keep_their_rows(monkeypatch, tmp_path):
    def measure(_, results):
        results.append({"case": "first"})
        raise KeyboardInterrupt

    monkeypatch.setattr(suites, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["tool", "--own-caches", "--json", str(tmp_path / "b.json")])
    with pytest.raises(KeyboardInterrupt):
        suites.main()
    assert json.loads((tmp_path / "b.json").read_text())["results"] == [{"case": "first"}]
