"""A token's experts from its router's logits, the highest scores first, and their weights.

A warp takes a token.  Lane l has experts l, l + 32, .. as words whose order as integers is that of their scores; in each turn the warp
finds the highest, of equal ones the expert with the lowest number, and takes it out.  Lane s then has the expert of slot s.  Which experts
are chosen depends on nothing but the scores; a NaN, whatever its sign, counts as the highest, and -0.0 is 0.0.  Waits for the launches
before, and signals nothing.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from ...blocks.setup import begin
from ...device.cast import LOG2E, f32_of_bits, times_sigmoid
from ...device.memory import load_f32, load_float, store_f32, store_u64
from ...device.ptx import emit_to
from ...device.warp import shuffle_f32, shuffle_xor_f32, warp_max_u32, warp_min_u32
from .arguments import TopExpertsArguments
from .config import TopExpertsConfig
from .problem import EXPERTS_PER_LANE_STEP, F32, SOFTMAX

LANES = EXPERTS_PER_LANE_STEP
NONE = 0
"""The word of what is taken out: below that of every score, -infinity included."""
NO_EXPERT = 1 << 20
COUNTED = 2  # scores of a group, the highest, that count for it
LOW = -17.0
"""Below it a sigmoid is a power of e, to all bits of FP32."""


def logit_of(config: TopExpertsConfig, args: TopExpertsArguments, token: Any, expert: Any) -> Float32:
    """Loads the logit that the router gives an expert for a token."""
    bf16 = config.problem.logits != F32
    return load_float(args.logits + (Int64(token) * config.problem.num_experts + expert) * (2 if bf16 else 4), bf16)


def score_of(config: TopExpertsConfig, args: TopExpertsArguments, logit: Any, expert: Any) -> Float32:
    """What experts are chosen by."""
    score = logit if config.problem.scores == SOFTMAX else times_sigmoid(Float32(1.0), logit, 1.0, False)
    return score + load_f32(args.bias + Int64(expert) * 4) if config.problem.biased else score


def word_of(score: Any) -> Uint32:
    """A word whose order is that of scores: the sign turned over, and the rest of negative ones.  All NaNs have the highest, and both zeros
    have the same, for -0.0 + 0.0 is 0.0."""
    template = (
        "{{\n\t.reg .f32 z;\n\t.reg .b32 b, s;\n\t.reg .pred p;\n\tadd.rn.f32 z, {1}, 0f00000000;\n\tmov.b32 b, z;\n\tshr.s32 s, b, 31;\n\t"
        "or.b32 s, s, 0x80000000;\n\txor.b32 b, b, s;\n\tsetp.nan.f32 p, z, z;\n\tselp.b32 {0}, 0xffffffff, b, p;\n\t}}"
    )
    return emit_to(Uint32, template, score)


def score_of_word(word: Any) -> Float32:
    """What `word_of` made it of."""
    template = "{{\n\t.reg .b32 s;\n\tshr.s32 s, {1}, 31;\n\tnot.b32 s, s;\n\tor.b32 s, s, 0x80000000;\n\txor.b32 {0}, {1}, s;\n\t}}"
    return f32_of_bits(emit_to(Uint32, template, word))


def larger(a: Any, b: Any) -> Uint32:
    return emit_to(Uint32, "max.u32 {}, {}, {};", a, b)


def highest(words: list[Any], lane: Any) -> tuple[Uint32, Int32]:
    """The highest word of the warp, and the lowest of the experts that have it."""
    most = words[0]
    for word in words[1:]:
        most = larger(most, word)
    most = Uint32(warp_max_u32(most))
    expert = Int32(NO_EXPERT)
    for step in reversed(range(len(words))):
        expert = Int32(cutlass.select_(words[step] == most, lane + step * LANES, expert))
    return most, Int32(warp_min_u32(expert))


def without(words: list[Any], lane: Any, expert: Any) -> list[Any]:
    """The same, this expert taken out."""
    return [Uint32(cutlass.select_(lane + step * LANES == expert, Uint32(NONE), word)) for step, word in enumerate(words)]


def in_best_groups(config: TopExpertsConfig, words: list[Any], lane: Any) -> list[Any]:
    """Words of experts, taken out where their group is none of the best; of equal groups the first are better."""
    problem = config.problem
    steps, sums = len(words) // problem.groups, []
    for group in range(problem.groups):
        own, total = words[group * steps : (group + 1) * steps], Float32(0.0)
        for _ in range(COUNTED):
            most, expert = highest(own, lane)
            own, total = without(own, lane, expert), total + score_of_word(most)
        sums.append(word_of(total))
    kept = []
    for group, mine in enumerate(sums):
        better = Int32(0)
        for other, theirs in enumerate(sums):
            if other != group:
                ahead = theirs >= mine if other < group else theirs > mine
                better = better + Int32(cutlass.select_(ahead, Int32(1), Int32(0)))
        own = words[group * steps : (group + 1) * steps]
        kept += [Uint32(cutlass.select_(better < problem.topk_groups, word, Uint32(NONE))) for word in own]
    return kept


def words_of(config: TopExpertsConfig, args: TopExpertsArguments, token: Any, lane: Any) -> list[Any]:
    """A lane's experts' words, every 32nd expert's; past the last there is none."""
    experts, words = config.problem.num_experts, []
    for first in range(0, experts, LANES):
        expert = cutlass.min(lane + first, Int32(experts - 1))
        word = word_of(score_of(config, args, logit_of(config, args, token, expert), expert))
        words.append(Uint32(cutlass.select_(lane + first < experts, word, Uint32(NONE))))
    return words


def raised(topk: int, logit: Any, lane: Any) -> Float32:
    """The logits of the lanes that have a slot, all raised by as much as brings the highest to `LOW`, if it is lower: their sigmoids have
    the same ratios then, and are not all zero."""
    words = cutlass.select_(lane < topk, word_of(logit), Uint32(NONE))
    most = score_of_word(warp_max_u32(words))
    return logit + Float32(cutlass.select_(most < Float32(LOW), Float32(LOW) - most, Float32(0.0)))


@cute.jit
def choose_experts(config: cutlass.Constexpr[TopExpertsConfig], args: TopExpertsArguments, token: Int32, lane: Int32):
    """A warp chooses the experts of one token and stores them with their weights."""
    problem, words = config.problem, words_of(config, args, token, lane)
    if cutlass.const_expr(problem.groups > 1):
        words = in_best_groups(config, words, lane)
    mine = Int32(0)
    for slot in cutlass.range_constexpr(problem.topk):
        _, expert = highest(words, lane)
        words = without(words, lane, expert)
        mine = Int32(cutlass.select_(lane == slot, expert, mine))
    logit = logit_of(config, args, token, mine)
    if cutlass.const_expr(problem.scores == SOFTMAX):
        share = emit_to(Float32, "ex2.approx.ftz.f32 {}, {};", (logit - shuffle_f32(logit, 0)) * Float32(LOG2E))
    else:
        share = times_sigmoid(Float32(1.0), raised(problem.topk, logit, lane), 1.0, False)
    share = Float32(cutlass.select_(lane < problem.topk, share, Float32(0.0)))
    total = share
    for mask in (16, 8, 4, 2, 1):
        total = total + shuffle_xor_f32(total, mask)
    if lane < problem.topk:
        place = Int64(token * problem.topk + lane)
        store_u64(args.topk_idx + place * 8, Int64(mine))
        weight = emit_to(Float32, "div.rn.f32 {}, {}, {};", share, total)
        store_f32(args.topk_weights + place * 4, weight * Float32(problem.scale))


@cute.kernel
def top_experts_kernel(config: cutlass.Constexpr[TopExpertsConfig], args: TopExpertsArguments):
    """One CTA: its warps stride over the tokens."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    warps = config.num_threads // LANES
    begin()
    for token in cutlass.range(cta + config.num_sms * (thread // LANES), args.num_tokens, config.num_sms * warps, unroll=1):
        choose_experts(config, args, Int32(token), thread % LANES)
