"""Mutants of the top_experts family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

CHOSEN = ("tests/kernels/test_top_experts.py::test_chosen_experts_are_those_of_the_reference",)
mutant = partial(Mutant, nearest=CHOSEN, archs=())

MUTANTS = (
    mutant("of a lane's equal scores the last is chosen", "wrong number", "highest", "reversed(range(len(words)))", "range(len(words))"),
    mutant("there is an expert past the last", "off by one", "words_of", "lane + first < experts", "lane + first <= experts"),
    mutant("an expert is chosen again", "wrong number", "choose_experts", "words = without(words, lane, expert)", ""),
    mutant("one score counts for a group", "wrong number", "COUNTED", "2", "1"),
    mutant(
        "of equal groups the last is better",
        "off by one",
        "in_best_groups",
        "theirs >= mine if other < group else theirs > mine",
        "theirs > mine if other < group else theirs >= mine",
    ),
    mutant(
        "a lane past the slots has a share",
        "off by one",
        "choose_experts",
        "cutlass.select_(lane < problem.topk, share, Float32(0.0))",
        "cutlass.select_(lane <= problem.topk, share, Float32(0.0))",
    ),
    mutant("an id past the table has experts", "off by one", "expert_of_id", "identity < Int64(args.hash_rows)", "identity <= identity"),
    mutant("a negative id has experts", "off by one", "expert_of_id", "identity >= Int64(0)", "identity >= Int64(-9)"),
    mutant(
        "a table's entry past the experts is one",
        "off by one",
        "expert_of_id",
        "expert < config.problem.num_experts",
        "expert <= config.problem.num_experts",
    ),
    mutant("places that are not filled count", "wrong number", "place_of", "place >= 0", "place >= -1"),
    mutant("every rank begins with the same replica", "wrong number", "place_of", "token + args.replica_shift", "token"),
    mutant("a masked slot has a place", "off by one", "place_of", "expert >= 0", "expert >= -1"),
    mutant(
        "a token without experts has weights that are none",
        "wrong number",
        "choose_experts",
        "cutlass.select_(total > Float32(0.0), total, Float32(1.0))",
        "total",
    ),
    mutant(
        "experts of a table have the first slot's logit for their highest",
        "wrong number",
        "choose_experts",
        "highest_logit(there, logit) if problem.hashed else shuffle_f32(logit, 0)",
        "shuffle_f32(logit, 0)",
    ),
)
