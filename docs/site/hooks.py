"""What mkdocs does not do by itself: the order of pages, the API's pages, and files of the repository that pages link to.

The order of pages is the index's (`docs/README.md`). A link that leaves `docs/` leads to a page that shows the file.
"""

from __future__ import annotations

import ast
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "megamoe_dsl"
LINK = re.compile(r"(\]\()([^)\s]+)([^)]*\))")
FENCE = re.compile(r"(?m)^(```.*?^```[^\n]*$)", re.DOTALL)
LANGUAGES = {".py": "python", ".json": "json", ".c": "c", ".toml": "toml"}
SHOWN = 150_000
"""Bytes of a file that a page shows at most."""
SHOW_NOTHING = "---\nsearch:\n  exclude: true\n---\n"


def sections() -> list[dict[str, Any]]:
    """The navigation: sections of the index with the pages that they link to."""
    nav: list[dict[str, Any]] = [{"Documentation": "README.md"}]
    for title, body in re.findall(r"(?ms)^## (.+?)$(.*?)(?=^## |\Z)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")):
        pages = [(text, page) for text, page in re.findall(r"\[([^\]]+)\]\((\w+/[\w/]+\.md)\)", body)]
        pages += [(name, f"reference/api/{name}.md") for name in apis()] if title == "Reference" else []
        if pages:
            nav.append({title: [{text.replace("`", ""): page} for text, page in pages]})
    return nav


def exported(module: Path) -> list[str]:
    """Public names of a package, by the stub that its names load from or by its `__all__`, or what a module defines."""
    stub, init = module / "__init__.pyi", module / "__init__.py"
    nodes = ast.parse((stub if stub.is_file() else init if module.is_dir() else module).read_text(encoding="utf-8")).body
    if stub.is_file():
        names = [alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    elif module.is_dir():
        lists = [node.value for node in nodes if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"]
        names = [name for value in lists for name in ast.literal_eval(value)]
    else:
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


@cache
def apis() -> dict[str, list[str]]:
    """Dotted name of every public module to its public names: of the package, and of modules that public names are."""
    found, pending = {}, [("megamoe_dsl", PACKAGE)]
    while pending:
        dotted, module = pending.pop(0)
        homes = {name: next((one for one in (module / name, module / f"{name}.py") if one.exists()), None) for name in exported(module)}
        pending += [(f"{dotted}.{name}", home) for name, home in homes.items() if home is not None]
        names = [name for name, home in homes.items() if home is None]
        if names and not (module.suffix and ".compat." in dotted):  # an adapter has a page of its own among the how-tos
            found[dotted] = names
    return dict(sorted(found.items()))


def api_page(dotted: str, names: list[str]) -> str:
    constants_last = sorted(names, key=lambda name: (name.isupper(), name.lower()))
    home = PACKAGE.parent.joinpath(*dotted.split("."))
    source = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    words = (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    return f"# {dotted}\n\n{words}\n\n" + "\n\n".join(f"::: {dotted}.{name}" for name in constants_last) + "\n"


def source_page(path: Path) -> str:
    """A page that shows a file, or names what a folder has."""
    title = f"{SHOW_NOTHING}# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        return title + "\n".join(f"- `{one.name}`" for one in sorted(path.iterdir()) if one.name != "__pycache__") + "\n"
    if path.suffix not in LANGUAGES or path.stat().st_size > SHOWN:
        return f"{title}A file of {path.stat().st_size:,} bytes, in the repository.\n"
    return f"{title}````{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}\n````\n"


def page_of(path: Path) -> str:
    """Where the site has a file outside `docs/`."""
    name = path.relative_to(ROOT).as_posix()
    return f"files/{name}" if path.suffix == ".md" else f"files/{name}.md"


def outside(target: str, page: Path) -> Path | None:
    """The file or folder outside `docs/` that a link of a page leads to; a folder's README in its place."""
    name = target.partition("#")[0]
    if not name or "://" in target:
        return None
    path = Path(posixpath.normpath((page.parent / name).as_posix()))
    if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "docs") or not path.exists():
        return None
    return path / "README.md" if (path / "README.md").is_file() else path


def repository_file(src_uri: str) -> Path:
    """The file that a page of the site is made from."""
    if src_uri.startswith("files/"):
        return ROOT / src_uri.removeprefix("files/")
    return ROOT / "docs" / src_uri


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = sections()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for dotted, names in apis().items():
        files.append(File.generated(config, f"reference/api/{dotted}.md", content=api_page(dotted, names)))
    pending = [ROOT / "docs" / file.src_uri for file in files.documentation_pages() if file.generated_by is None]
    while pending:
        page = pending.pop()
        for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            path = outside(target, page)
            if path is None or page_of(path) in files.src_uris:
                continue
            markdown = path.suffix == ".md"
            content = SHOW_NOTHING + path.read_text(encoding="utf-8") if markdown else source_page(path)
            files.append(File.generated(config, page_of(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
            pending += [path] if markdown else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to the site's pages, and a blank line before lists, which Python-Markdown needs."""
    here, source = page.file.src_uri, repository_file(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        if "://" in found[2] or found[2].startswith("#"):
            return found[0]
        name, mark, anchor = found[2].partition("#")
        path = outside(found[2], source)
        if path is None and here.startswith("files/"):
            path = Path(posixpath.normpath((source.parent / name).as_posix()))
            goal = path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else page_of(path)
            goal = f"{goal}/README.md" if path.is_dir() else goal
        elif path is None:
            return found[0]
        else:
            goal = page_of(path)
        return f"{found[1]}{posixpath.relpath(goal, posixpath.dirname(here))}{mark}{anchor}{found[3]}"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else spaced(LINK.sub(link, part)) for part in parts)


def spaced(text: str) -> str:
    """With a blank line before every list that follows a line of text."""
    return re.sub(r"(?m)^(?![-*] |\d+\. |\s|$|\||#)(.+)\n(?=(?:[-*]|\d+\.) )", r"\1\n\n", text)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The theme would fetch its stand-in for workers from the network."""
    base = posixpath.relpath("site.js", posixpath.dirname(page.file.dest_uri))
    return re.sub(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>', f'<script src="{base}"></script>', output)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    return re.sub(r'<script src="https://unpkg\.com/[^"]*"></script>', "", output_content)
