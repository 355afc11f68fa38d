"""Faults for the kernel's PTX: every instruction that synchronizes, one at a time taken out or weakened.

A rule finds its sites by the text of an instruction and says what becomes of it; a fault is one rule at one site, named `rule n`, the sites
numbered in PTX order.  What the watchdog executes before it traps is no synchronization and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`pattern` matches one whole instruction; `change` turns the match into its replacement.

    `together`: instructions on one address register are one site (the first read of a spin and those of its loop).
    """

    name: str
    pattern: str
    change: Callable[[re.Match[str]], str]
    together: bool = False


@dataclass(frozen=True)
class Fault:
    """`edits`: a text, at a character offset, and what it becomes."""

    name: str
    edits: tuple[tuple[int, str, str], ...]

    def apply(self, ptx: str) -> str:
        for start, text, faulty in reversed(self.edits):
            ptx = ptx[:start] + faulty + ptx[start + len(text) :]
        return ptx


def gone(match: re.Match[str]) -> str:
    return ""


def swap(old: str, new: str) -> Callable[[re.Match[str]], str]:
    return lambda match: match[0].replace(old, new, 1)


def last_number_plus(step: int) -> Callable[[re.Match[str]], str]:
    """The last literal operand, off by `step`."""

    def change(match: re.Match[str]) -> str:
        head, number = re.fullmatch(r"(.*?)(\d+);", match[0], re.S).groups()  # type: ignore[union-attr]
        return f"{head}{int(number) + step};"

    return change


def twice(match: re.Match[str]) -> str:
    return f"{match[0]}\n\t{match[0]}"


def taken(match: re.Match[str]) -> str:
    """A spin that leaves at once: the branch out after its first read becomes unconditional."""
    return re.sub(r"@!?%p\d+ bra", "bra", match[0])


CLUSTER_BARRIER = r"barrier\.cluster\.arrive\.release\.aligned;.*?barrier\.cluster\.wait\.acquire\.aligned;"
ARRIVAL = r"(?:@p )?mbarrier\.arrive\.shared[^;]*;"
SPIN = (
    r"ld\.(?:acquire|relaxed)\.(?:gpu|sys)\.global\.b\d\d [^;]*;\s*// end inline asm(?:\s*(?!setp|ld|bra)[^@;]*;)*?"
    r"\s*(?:sub\.s32[^;]*;\s*)?setp\.(?:eq|gt)[^;]*;(?:\s*mov[^;]*;)*\s*@%p\d+ bra"
)

RULES = (
    # --- waiting
    Rule("mbarrier wait skipped", r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p,[^;]*;", lambda m: "setp.eq.s32 p, 0, 0;"),
    Rule("spin skipped", SPIN, taken),
    Rule("named barrier skipped", r"barrier\.cta\.sync\.aligned [^;]*;", gone),
    Rule("warp barrier skipped", r"bar\.warp\.sync [^;]*;", gone),
    Rule("cluster barrier skipped", CLUSTER_BARRIER, gone),
    Rule("bulk group wait skipped", r"cp\.async\.bulk\.wait_group \d;", gone),
    Rule("bulk group read wait skipped", r"cp\.async\.bulk\.wait_group\.read \d;", gone),
    Rule("bulk group waits for one less", r"cp\.async\.bulk\.wait_group(?:\.read)? \d;", last_number_plus(1)),
    Rule("TMEM load wait skipped", r"tcgen05\.wait::ld\.sync\.aligned;", gone),
    # --- ordering
    Rule("proxy fence dropped", r"fence\.proxy\.async\.[\w:]+;", gone),
    Rule("proxy fence of the other space", r"fence\.proxy\.async\.[\w:]+;", lambda m: other_space(m[0])),
    Rule("tensor map fence dropped", r"fence\.proxy\.tensormap[^;]*;", gone),
    Rule("tensor map fence of a smaller scope", r"fence\.proxy\.tensormap[^;]*;", swap(".sys", ".gpu")),
    Rule("system fence dropped", r"fence\.acq_rel\.sys;(?!\s*// end inline asm\s*// begin inline asm\s*(?:trap|st))", gone),
    Rule("release made relaxed", r"\bred\.release\.\w+\.[^;]*;", swap(".release", ".relaxed")),
    Rule("release of a smaller scope", r"\bred\.release\.\w+\.[^;]*;", lambda m: smaller_scope(m[0])),
    Rule("acquire made relaxed", r"ld\.acquire\.\w+\.[^;]*;", swap(".acquire", ".relaxed"), together=True),
    Rule("acquire of a smaller scope", r"ld\.acquire\.\w+\.[^;]*;", lambda m: smaller_scope(m[0]), together=True),
    Rule("tcgen05 fence dropped", r"tcgen05\.fence::\w+;", gone),
    Rule("mbarrier initialization fence dropped", r"fence\.mbarrier_init[^;]*;", gone),
    # --- signalling
    Rule("signal dropped", r"\bred\.[\w.:]+ [^;]*;", gone),
    Rule("signal twice", r"\bred\.[\w.:]+add[\w.]* [^;]*;", twice),
    Rule("arrival dropped", ARRIVAL, gone),
    Rule("arrival twice", ARRIVAL, twice),
    Rule("arrival with bytes dropped", r"mbarrier\.arrive\.expect_tx[^;]*;", gone),
    Rule("bytes too many", r"mbarrier\.arrive\.expect_tx[^;]*;", last_number_plus(16)),
    Rule("bytes too few", r"mbarrier\.arrive\.expect_tx[^;]*;", last_number_plus(-16)),
    Rule("arrival count too high", r"mbarrier\.init[^;]*;", last_number_plus(1)),
    Rule("arrival count too low", r"mbarrier\.init[^;]*(?<!\D1);", last_number_plus(-1)),
    Rule("mbarrier not initialized", r"mbarrier\.init[^;]*;", gone),
    Rule("tcgen05 commit dropped", r"tcgen05\.commit[^;]*;", gone),
    Rule("tcgen05 commit to one CTA", r"mov\.b16 m, 3;", swap("3", "1")),
    Rule("bulk group commit dropped", r"cp\.async\.bulk\.commit_group;", gone),
    # --- work
    Rule("copy or store dropped", r"cp\.async\.bulk\.(?:tensor|shared|global)[^;]*;", gone),
    Rule("scale copy dropped", r"tcgen05\.cp[^;]*;", gone),
    Rule("MMA dropped", r"tcgen05\.mma[^;]*;", gone),
    Rule("election for all lanes", r"elect\.sync _\|p, 0xffffffff;", lambda m: "setp.eq.s32 p, 0, 0;"),
    Rule(
        "atomic result not used",
        r"atom\.[\w.:]+ [^;]*;",
        lambda m: f"{m[0]}\n\t{forget(m[0])}",
    ),
)


def other_space(fence: str) -> str:
    return "fence.proxy.async.global;" if "shared" in fence else "fence.proxy.async.shared::cta;"


def smaller_scope(text: str) -> str:
    return text.replace(".sys.", ".gpu.", 1) if ".sys." in text else text.replace(".gpu.", ".cta.", 1)


def forget(atomic: str) -> str:
    """The previous value replaced by zero."""
    register = re.search(r"%\w+", atomic)[0]  # type: ignore[index]
    return f"mov.{'b64' if 'u64' in atomic else 'b32'} {register}, 0;"


WATCHDOG = re.compile(r"st\.relaxed\.sys\.global\.b32.*?trap;", re.S)


def all_faults(ptx: str) -> list[Fault]:
    """Every rule at every site."""
    spared = [match.span() for match in WATCHDOG.finditer(ptx)]
    faults = []
    for rule in RULES:
        sites = [m for m in re.finditer(rule.pattern, ptx, re.S) if not any(low < m.start() < high for low, high in spared)]
        groups: dict[object, list[re.Match[str]]] = {}
        for match in sites:
            groups.setdefault(match[0].split("[")[1] if rule.together else match.start(), []).append(match)
        for n, equal in enumerate(groups.values()):
            edits = tuple((match.start(), match[0], rule.change(match)) for match in equal)
            faults.append(Fault(f"{rule.name} {n}", edits))
    return faults
