"""Every source that the code cites is explained in docs/lab/references.md."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "lab" / "references.md").read_text()
SOURCES = sorted(file for kind in ("*.py", "*.md") for file in (ROOT / "src").rglob(kind))

SECTIONS = re.compile(r"\barticle(?: sections?)? \(?(\d[\d.]*(?:(?:, | and | to )\d[\d.]*)*)")
NOTES = re.compile(r"\b([A-Z0-9]+)[_ ](?:FACTS|facts)\b(?: \(([^)]*)\)|, ([A-Z]\w*)\))?")
MANUAL = re.compile(r'PTX ISA[,:]? (?!does )((?:"[^"]*"| \([^)]*\)|[^;.()":]|\.(?=\w))*)')
INSTRUCTION = re.compile(r"[a-z][a-z0-9_.]*")
NAMED = re.compile(r"arXiv \d{4}\.\d{5}|CUDA Programming Guide|OCP Microscaling|CUTLASS|sgl-deep-gemm")
DEEPGEMM = re.compile(r"DeepGEMM(?:'s(?: \w+ kernel)?)? \(?`([^`]+)`(?: and `([^`]+)`)?")


def one_line(source: str) -> str:
    """Without line ends, nor the comment signs of continued comments."""
    return re.sub(r"\s*\n\s*(?:# ?)?", " ", source)


def cited(source: str) -> Iterator[tuple[str, str]]:
    """(section of the page, entry) for every citation in a file."""
    text = one_line(source)
    for found in SECTIONS.finditer(text):
        for number in re.split(", | and | to ", found[1]):
            yield "The article", number.rstrip(".")
    for found in NOTES.finditer(text):
        yield "Measured and derived facts", f"{found[1]}_FACTS"
        for topic in re.split(", ", found[2] or found[3] or ""):
            if topic:
                yield f"{found[1]}_FACTS", topic
    for found in MANUAL.finditer(text):
        for entry in manual_entries(found[1]):
            yield "PTX ISA", entry
    for found in DEEPGEMM.finditer(text):
        for name in filter(None, found.groups()):
            yield "DeepGEMM", name
    for found in NAMED.finditer(text):
        yield "", found[0]


def manual_entries(citation: str) -> Iterator[str]:
    """Names of sections and instructions: the quoted ones, and what stands bare between commas (beside quoted ones, instructions alone)."""
    quoted = re.findall('"([^"]+)"', citation)
    yield from quoted
    for name in re.split(", | and ", re.sub(r'"[^"]+"| \([^)]*\)', "", citation)):
        bare = name.strip(" ,").removeprefix("the ")
        if bare and (not quoted or INSTRUCTION.fullmatch(bare)) and bare != "and":
            yield bare


def section(heading: str) -> str:
    """The page's text under a heading, up to the next one of its depth or less."""
    found = re.search(rf"(?ms)^(#+) {re.escape(heading)}$(.*)", PAGE)
    assert found is not None, heading
    return re.split(rf"(?m)^#{{1,{len(found[1])}}} ", found[2])[0]


def entries(heading: str) -> set[str]:
    """Lower-case names that a section explains: first cells of its tables, bold words of its lists, headings below it.  Without a heading,
    those of the whole page."""
    text = section(heading) if heading else PAGE
    names = [name for row in re.findall(r"(?m)^\| ([^|]+) \|", text) for name in row.split("; ")]
    names += re.findall(r"(?m)^#+ (.+)$", text) + re.findall(r"(?m)^- \*\*([^*]+)\*\*", text)
    return {name.replace("`", "").lower() for name in names}


def missing(source: str) -> set[tuple[str, str]]:
    return {(heading, entry) for heading, entry in cited(source) if entry.lower() not in entries(heading)}


def test_every_citation_has_its_entry() -> None:
    assert {file.relative_to(ROOT).as_posix(): lost for file in SOURCES if (lost := missing(file.read_text()))} == {}


def test_citations_of_every_kind_are_found() -> None:
    found = Counter(heading for file in SOURCES for heading, _ in cited(file.read_text()))
    assert found["The article"] >= 30 and found["PTX ISA"] >= 60 and found["SM100_FACTS"] >= 5
    assert found["MEGAMOE_FACTS"] >= 1 and found["DeepGEMM"] >= 4 and found[""] >= 4


@pytest.mark.parametrize(
    ("citation", "entry"),
    [
        ("(article 9.9)", ("The article", "9.9")),
        ("Source: article\n    section 4.1.3 to 4.9.", ("The article", "4.9")),
        ("(MINE_FACTS)", ("Measured and derived facts", "MINE_FACTS")),
        ("SM100_FACTS (TMEM, moods)", ("SM100_FACTS", "moods")),
        ("(MEGAMOE_FACTS, Rings)", ("MEGAMOE_FACTS", "Rings")),
        ("(PTX ISA, vabsdiff)", ("PTX ISA", "vabsdiff")),
        ("(PTX ISA: ld, st\n# and lds)", ("PTX ISA", "lds")),
        ('PTX ISA, "Tensors" (tiled mode), "Video"; more', ("PTX ISA", "Video")),
        ("as DeepGEMM's `sm89.cuh`", ("DeepGEMM", "sm89.cuh")),
        ("(arXiv 2401.00001)", ("", "arXiv 2401.00001")),
    ],
)
def test_an_unknown_citation_is_missed(citation: str, entry: tuple[str, str]) -> None:
    assert missing(f'"""Words.\n\n{citation}\n"""\n') == {entry}


def test_the_page_names_no_folder_outside_the_repository() -> None:
    assert re.findall(r"(?:\.\./)+(?!\.\.|src|bench|reference|explanation|howto)[\w./-]+|/work\b|seed document", PAGE) == []
