"""Where the program `souk` is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

from .errors import BinaryNotFound


def find_binary(binary: str | os.PathLike[str] | None = None) -> Path:
    """The program `souk`: the one given, $SOUK_BIN, that of the package souk-bin, or on PATH."""
    given = binary or os.environ.get("SOUK_BIN")
    if given:
        path = Path(os.fspath(given))
        if os.access(path, os.X_OK) and path.is_file():
            return path.absolute()
        raise BinaryNotFound(f"{path} is no program", "give the path of the binary `souk`")
    found = _of_package() or shutil.which("souk")
    if not found:
        raise BinaryNotFound(
            "the program souk is not on this machine",
            "pip install souk-bin, put it on PATH, or set SOUK_BIN",
        )
    return Path(found).absolute()


def _of_package() -> str | None:
    try:
        import souk_bin  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return str(cast("Any", souk_bin).path())
