"""Mutants of what is checked and planned before a launch, and of the simulator's own rules, that earlier tests did not notice."""

from __future__ import annotations

from host_mutant import host

PLANNED = "tests/test_plans.py::test_plans_are_those_committed"
SIM, QUANT = "tests/sim/test_", "tests/quant/test_quant_formats.py::test_"

CHECKED = (
    host(
        "a sum's channels may be any number",
        "missing check",
        "SumProblem.__post_init__",
        'self.require_multiple(CHANNEL_STEP, "hidden")',
        "",
        PLANNED,
    ),
    host("rows of B may be no integer", "missing check", "GemmProblem.__post_init__", "as_integer(self.b_rows)", "self.b_rows", PLANNED),
    host(
        "options are refused that a kernel takes",
        "missing check",
        "check_kernel",
        "one.name not in TAKEN[kernel]",
        "one.name in TAKEN[kernel]",
        "tests/test_cli_bad_input.py::test_options_that_a_kernel_does_not_take",
    ),
    host(
        "an engine's layer has the default bounds",
        "lost data",
        "new_layer",
        "bounds=prepared_bounds(problem, target)",
        "bounds=None",
        "tests/compat/test_engine_parts.py::test_a_layer_is_made_of_what_an_engine_says",
    ),
    host(
        "scales of packed weights may have any shape",
        "missing check",
        "dequantize_e2m1",
        '_require_scales("sf", code, sf, block)',
        "",
        f"{QUANT}errors_name_field_value_and_allowed",
    ),
    host(
        "a negative NaN is a number",
        "too narrow",
        "not_finite",
        "values.view(torch.uint8).bitwise_and(0x7F) == _E4M3_NAN",
        "values.view(torch.uint8) == _E4M3_NAN",
        f"{QUANT}every_code_that_is_no_number",
    ),
)
SIMULATED = (
    host(
        "halves are rounded twice",
        "wrong number",
        "_function.modified",
        "_to_odd(out)",
        "out.astype(np.float32)",
        f"{SIM}core_floating.py::test_halves_are_rounded_once",
    ),
    host(
        "an engine's access has another line",
        "lost data",
        "pack",
        "line & LINE_MASK",
        "line | LINE_MASK",
        f"{SIM}shadow.py::test_a_record_says_what_it_was_made_of",
    ),
    host(
        "arrays that touch share memory",
        "off by one",
        "visible_memory",
        "span.start < one.end",
        "span.start <= one.end",
        f"{SIM}core_memory.py::test_neighbors_share_no_memory",
    ),
    host(
        "no load is under way behind a branch",
        "too narrow",
        "LoadsInFlight._under_way",
        "[] if ins.target is None else [ins.target]",
        "[]",
        f"{SIM}parser.py::test_loads_that_may_be_under_way",
    ),
    host(
        "findings at two places are one",
        "incomplete key",
        "Report.by_source",
        "one.kind, one.first_kernel, first, one.second_kernel, second",
        "one.kind, one.first_kernel, first, one.second_kernel",
        f"{SIM}core_race.py::test_findings_of_one_kind_and_pair_of_sources_are_one",
    ),
    host(
        "an array without a size takes an element of shared memory",
        "wrong number",
        "parser:_placed",
        "count or 0",
        "count or 1",
        f"{SIM}parser.py::test_places_in_shared_memory",
    ),
)
