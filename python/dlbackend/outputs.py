"""Files that command-line tools write on request, checked before the work begins so that its results are not lost.

file(), file_or_folder() and picture() are types of argparse's arguments: what cannot be written ends the program with a
line that says why, and argparse's exit status. One rule for all: folders that are missing are made.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlbackend.pictures import figure_class


def file(text: str) -> Path:
    """A file that can be written. It is not made yet, nor changed."""
    path = Path(text)
    with _refused(text):
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        if not path.exists():
            _make_folder(path.parent)
        elif not os.access(path, os.W_OK):
            raise PermissionError("permission denied")
    return path


def file_or_folder(text: str) -> Path:
    """A file as above or, where it is there already or its name ends with a slash, a folder to write files into."""
    path = Path(text)
    if not (text.endswith(os.sep) or path.is_dir()):
        return file(text)
    with _refused(text):
        _make_folder(path)
    return path


def picture(text: str) -> Path:
    """A file as above for a picture in the format that its ending names. Needs matplotlib."""
    try:
        figure = figure_class()()
    except ImportError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    ending, known = Path(text).suffix[1:].lower(), figure.canvas.get_supported_filetypes()
    if ending and ending not in known:
        raise argparse.ArgumentTypeError(f"{text!r} names no format of pictures: end it with .{', .'.join(known)}")
    return file(text)


def write_json(path: Path, record: Any) -> None:
    """Writes a record, in which there may be dataclasses."""
    path.write_text(json.dumps(record, indent=1, default=dataclasses.asdict) + "\n")


def _make_folder(folder: Path) -> None:
    """The folder, if need be; OSError where no file can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{str(folder)!r} is no folder") from error
    with tempfile.TemporaryFile(dir=folder):
        pass


@contextlib.contextmanager
def _refused(text: str) -> Iterator[None]:
    """Has argparse report an OSError."""
    try:
        yield
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written, name another place: {error}") from error
