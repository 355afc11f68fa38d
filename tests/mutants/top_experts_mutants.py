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
        "logit, there = logit_of(config, args, token, mine), lane < problem.topk",
        "logit, there = logit_of(config, args, token, mine), lane <= problem.topk",
    ),
    mutant("a series has a term less", "wrong number", "ATANH_TERMS", "range(8)", "range(1, 8)"),
    mutant(
        "an id past the table is looked up", "missing check", "expert_of_id", "identity < Int64(args.hash_rows)", "identity >= Int64(0)"
    ),
    mutant(
        "the table has an entry past the last expert",
        "off by one",
        "expert_of_id",
        "expert < config.problem.num_experts",
        "expert <= config.problem.num_experts",
    ),
    mutant("all ranks take the first place", "wrong base", "place_of", "token + args.replica_shift", "token"),
    mutant("an expert without a place has one", "off by one", "place_of", "place >= 0", "place >= -1"),
)
