"""A token's experts from its router's logits, the highest scores first, or those that a table has for its id; and their weights.

A warp takes a token.  Lane l has experts l, l + 32, .. as words whose order as integers is that of their scores; in each turn the warp
finds the highest, of equal ones the expert with the lowest number, and takes it out.  Lane s then has the expert of slot s.  A NaN,
whatever its sign, counts as the highest, and -0.0 is 0.0.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from ...blocks.cta import begin
from ...device.cast import LOG2E, f32_of_bits, fma, times_sigmoid
from ...device.memory import load_f32, load_float, load_u32, load_u64, store_f32, store_u64
from ...device.ptx import emit_to
from ...device.warp import over_lanes, shuffle_f32, warp_max_u32, warp_min_u32
from .problem import EXPERTS_PER_LANE_STEP, F32, SIGMOID, SOFTMAX

LANES = EXPERTS_PER_LANE_STEP
NONE = 0  # the word of what is taken out: below that of every score, -infinity included
NO_EXPERT = 1 << 20
COUNTED = 2  # scores of a group, the highest, that count for it
LOW = -17.0  # below it a sigmoid, and log(1 + exp(x)), is a power of e, to all bits of FP32
ATANH_TERMS = tuple(2.0 / (2 * term + 1) for term in reversed(range(8)))
"""Of 2 atanh(s) / s in s^2, which is 1/9 at most, the last first: the rest is below a rounding of FP32."""


def logit_of(config: Any, args: Any, token: Any, expert: Any) -> Float32:
    """Loads the logit that the router gives an expert for a token."""
    bf16 = config.problem.logits != F32
    return load_float(args.logits + (Int64(token) * config.problem.num_experts + expert) * (2 if bf16 else 4), bf16)


def score_of(config: Any, args: Any, logit: Any, expert: Any) -> Float32:
    """What experts are chosen by."""
    score = logit if config.problem.scores == SOFTMAX else share_of(config, logit)
    return score + load_f32(args.bias + Int64(expert) * 4) if config.problem.biased else score


def share_of(config: Any, logit: Any) -> Float32:
    """The sigmoid of a logit, or the root of log(1 + exp(logit)), to a few roundings.  With q = 1 / (1 + exp(|x|)) and s = q / (2 - q),
    log(1 + exp(x)) is max(x, 0) + 2 atanh(s)."""
    if config.problem.scores == SIGMOID:
        return Float32(times_sigmoid(Float32(1.0), logit, 1.0, False))
    q = times_sigmoid(Float32(1.0), emit_to(Float32, "{{\n\t.reg .f32 a;\n\tabs.f32 a, {1};\n\tneg.f32 {0}, a;\n\t}}", logit), 1.0, False)
    s = emit_to(Float32, "div.rn.f32 {}, {}, {};", q, Float32(2.0) - q)
    series = Float32(0.0)
    for term in ATANH_TERMS:
        series = fma(series, s * s, Float32(term))
    softplus = fma(s, series, emit_to(Float32, "max.f32 {}, {}, {};", logit, Float32(0.0)))
    return Float32(emit_to(Float32, "sqrt.rn.f32 {}, {};", softplus))


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


def highest(words: list[Any], lane: Any) -> tuple[Uint32, Int32]:
    """The highest word of the warp, and the lowest of the experts that have it."""
    most = Uint32(warp_max_u32(reduce(partial(emit_to, Uint32, "max.u32 {}, {}, {};"), words)))
    expert = Int32(NO_EXPERT)
    for step in reversed(range(len(words))):
        expert = Int32(cutlass.select_(words[step] == most, lane + step * LANES, expert))
    return most, Int32(warp_min_u32(expert))


def without(words: list[Any], lane: Any, expert: Any) -> list[Any]:
    return [Uint32(cutlass.select_(lane + step * LANES == expert, Uint32(NONE), word)) for step, word in enumerate(words)]


def in_best_groups(config: Any, words: list[Any], lane: Any) -> list[Any]:
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


def words_of(config: Any, args: Any, token: Any, lane: Any) -> list[Any]:
    """A lane's experts' words, every 32nd expert's; past the last there is none."""
    experts, words = config.problem.num_experts, []
    for first in range(0, experts, LANES):
        expert = cutlass.min(lane + first, Int32(experts - 1))
        word = word_of(score_of(config, args, logit_of(config, args, token, expert), expert))
        words.append(Uint32(cutlass.select_(lane + first < experts, word, Uint32(NONE))))
    return words


def expert_of_id(config: Any, args: Any, token: Any, lane: Any) -> Int32:
    """What the table names in a lane's slot for a token's id; -1 for an id past the table, and for what is no expert or no slot."""
    topk, identity = config.problem.topk, Int64(load_u64(args.token_ids + Int64(token) * 8))
    there = (identity >= Int64(0)) & (identity < Int64(args.hash_rows))
    row = Int64(cutlass.select_(there, identity, Int64(0)))
    expert = Int32(load_u32(args.hash_table + (row * topk + cutlass.min(lane, Int32(topk - 1))) * 4))
    there = there & (expert >= 0) & (expert < config.problem.num_experts) & (lane < topk)
    return Int32(cutlass.select_(there, expert, Int32(-1)))


def place_of(config: Any, args: Any, token: Any, expert: Any) -> Int32:
    """Where a replica of an expert is: a token's number chooses among them in turn; -1 for no expert, and for one without a place."""
    known, most = cutlass.max(expert, Int32(0)), config.problem.replicas
    places = [Int32(load_u32(args.replicas + (Int64(known) * most + replica) * 4)) for replica in range(most)]
    count = sum((Int32(cutlass.select_(place >= 0, Int32(1), Int32(0))) for place in places), Int32(0))
    chosen, found = (token + args.replica_shift) % cutlass.max(count, Int32(1)), Int32(-1)
    for replica, place in enumerate(places):
        found = Int32(cutlass.select_(chosen == replica, place, found))
    return Int32(cutlass.select_(expert >= 0, found, Int32(-1)))


def highest_logit(there: Any, logit: Any) -> Float32:
    return score_of_word(warp_max_u32(cutlass.select_(there, word_of(logit), Uint32(NONE))))


def raised(there: Any, logit: Any) -> Float32:
    """The logits of the lanes that have a slot, all raised by as much as brings the highest to `LOW`, if it is lower: their shares have
    the same ratios then, and are not all zero."""
    most = highest_logit(there, logit)
    return logit + Float32(cutlass.select_(most < Float32(LOW), Float32(LOW) - most, Float32(0.0)))


@cute.jit
def choose_experts(config: cutlass.Constexpr[Any], args: Any, token: Int32, lane: Int32):
    """A warp chooses the experts of one token and stores them with their weights."""
    problem, mine = config.problem, Int32(0)
    if cutlass.const_expr(problem.hashed):
        mine = expert_of_id(config, args, token, lane)
        there = mine >= 0
        logit = logit_of(config, args, token, cutlass.max(mine, Int32(0)))
    else:
        words = words_of(config, args, token, lane)
        if cutlass.const_expr(problem.groups > 1):
            words = in_best_groups(config, words, lane)
        for slot in cutlass.range_constexpr(problem.topk):
            _, expert = highest(words, lane)
            words = without(words, lane, expert)
            mine = Int32(cutlass.select_(lane == slot, expert, mine))
        logit, there = logit_of(config, args, token, mine), lane < problem.topk
    if cutlass.const_expr(problem.scores == SOFTMAX):
        most = highest_logit(there, logit) if problem.hashed else shuffle_f32(logit, 0)
        share = emit_to(Float32, "ex2.approx.ftz.f32 {}, {};", (logit - most) * Float32(LOG2E))
    else:
        share = share_of(config, raised(there, logit))
    if cutlass.const_expr(problem.hashed):
        share = Float32(cutlass.select_(there, share, Float32(0.0)))
    share = Float32(cutlass.select_(lane < problem.topk, share, Float32(0.0)))
    total = over_lanes(add, share, (16, 8, 4, 2, 1))
    if cutlass.const_expr(problem.hashed):
        total = Float32(cutlass.select_(total > Float32(0.0), total, Float32(1.0)))
    if cutlass.const_expr(problem.replicas > 0):
        mine = place_of(config, args, token, mine)
    if lane < problem.topk:
        place = Int64(token * problem.topk + lane)
        store_u64(args.topk_idx + place * 8, Int64(mine))
        weight = emit_to(Float32, "div.rn.f32 {}, {}, {};", share, total)
        store_f32(args.topk_weights + place * 4, weight * Float32(problem.scale))


@cute.kernel
def top_experts_kernel(config: cutlass.Constexpr[Any], args: Any):
    """One CTA: its warps stride over the tokens."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    warps = config.num_threads // LANES
    begin()
    for token in cutlass.range(cta + config.num_sms * (thread // LANES), args.num_tokens, config.num_sms * warps, unroll=1):
        choose_experts(config, args, Int32(token), thread % LANES)
