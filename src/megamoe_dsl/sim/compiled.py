"""Files of C beside this one, which the C compiler makes into modules on first use, kept beside Python's own compiled files."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from .errors import SimError

FOLDER = Path(__file__).parent


def build(source: Path, fields: Mapping[str, int], folder: Path) -> Path:
    """The compiled file in a folder, with `fields` as macros, made if it is not there. Raises OSError or `subprocess.SubprocessError`."""
    flags = ["-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    flags += [f"-D{name}={value}" for name, value in fields.items()]
    of = hashlib.sha256(source.read_bytes() + repr((fields, np.__version__)).encode()).hexdigest()[:16]
    target = folder / f"{source.stem}-{of}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:  # other processes may be at it
            made = Path(own) / target.name
            command = [*shlex.split(os.environ.get("CC") or "cc"), *flags, str(source), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True)
            made.replace(target)
    return target


def load(name: str, file: Path) -> Any:
    """The module in a compiled file."""
    spec = spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(name: str, fields: Mapping[str, int]) -> Any:
    """The module of `name`.c.  Raises SimError without a C compiler or the headers of Python."""
    source = FOLDER / f"{name}.c"
    with tempfile.TemporaryDirectory() as spare:  # where the package's folder cannot be written
        for folder in (FOLDER / "__pycache__", Path(spare)):
            try:
                return load(name, build(source, fields, folder))
            except (OSError, ImportError, subprocess.SubprocessError) as error:
                failed = getattr(error, "stderr", None) or str(error).encode()
    said = failed.decode(errors="replace").strip()
    raise SimError(f"CC = {os.environ.get('CC') or 'cc'!r}: must be a C compiler that finds Python.h; {name}.c: {said}")
