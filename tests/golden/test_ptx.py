"""Compiled instructions are those that were committed: what is meant to move code around must not change a kernel.

A commit that changes a kernel on purpose takes new digests (`make golden`) and says so.
"""

import ptx_digests
import pytest


@pytest.mark.parametrize("name", ptx_digests.CASES)
def test_instructions_are_those_committed(name: str) -> None:
    assert ptx_digests.present(name) == ptx_digests.read()[name], f"{name}: other instructions than those committed (make golden)"


def test_every_digest_belongs_to_a_configuration() -> None:
    assert list(ptx_digests.read()) == list(ptx_digests.CASES)
