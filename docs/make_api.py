"""The API reference as a static site, from the docstrings: python docs/make_api.py FOLDER."""

import sys
from pathlib import Path
from pkgutil import walk_packages

import pdoc

import megamoe_dsl

COMPILES_AT_IMPORT = "megamoe_dsl.presets.deepseek"


def modules() -> list[str]:
    """Every module but those whose import compiles kernels or is a script."""
    found = [one.name for one in walk_packages(megamoe_dsl.__path__, "megamoe_dsl.")]
    return [name for name in found if not name.startswith(COMPILES_AT_IMPORT) and not name.endswith("__main__")]


if __name__ == "__main__":
    pdoc.render.configure(docformat="markdown", show_source=False)
    pdoc.pdoc(*modules(), output_directory=Path(sys.argv[1]))
