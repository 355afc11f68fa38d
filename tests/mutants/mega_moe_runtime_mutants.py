"""Mutants of what surrounds the mega kernel on the host: launches, buffers, padding."""

from __future__ import annotations

from mutant import Mutant

LAUNCHES = "tests/runtime/test_launch_arguments.py"
RUNTIME = (
    Mutant(
        "peers without the buffer's offset in its allocation",
        "wrong base",
        "SymmetricBuffer.allocate",
        "[address + offset for address in addresses]",
        "list(addresses)",
        (f"{LAUNCHES}::test_peers_are_the_buffers_not_the_allocations_they_lie_in",),
        archs=(),
    ),
    Mutant(
        "a grid of an odd number of SMs",
        "wrong launch",
        "even_sms",
        '(present - integer_between("reserved_sms", reserved, 0, most, f"between 0 and {most}")) // 2 * 2',
        'present - integer_between("reserved_sms", reserved, 0, most, f"between 0 and {most}")',
        (f"{LAUNCHES}::test_grids_are_even",),
        archs=(),
    ),
    Mutant(
        "32-bit arguments one place too late",
        "wrong launch",
        "ArgumentBlock.__init__",
        "zip(spec.names, spec.widths, strict=True)",
        "zip(spec.names, (8, *spec.widths[:-1]), strict=True)",
        (f"{LAUNCHES}::test_arguments_are_as_wide_as_the_kernels_parameters",),
        archs=(),
    ),
    Mutant(
        "rank 0 passed on every rank",
        "wrong launch",
        "RankKernel.__init__",
        "weights.arguments(symmetric.peers.data_ptr(), 0, 0, symmetric.rank, watchdog_ns)",
        "weights.arguments(symmetric.peers.data_ptr(), 0, 0, 0, watchdog_ns)",
        (f"{LAUNCHES}::test_a_launch_has_the_number_of_its_rank",),
        archs=(),
    ),
)
