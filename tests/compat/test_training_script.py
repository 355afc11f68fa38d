"""bench/transformers_training.py trains a tiny model on the CPU by either implementation."""

from transformers_training import IMPLEMENTATIONS, summary, table, train


def test_both_implementations_have_the_same_losses() -> None:
    records = [train(one, 0, 3, True, "cpu") for one in IMPLEMENTATIONS]
    ours, theirs = (record["losses"] for record in records)
    assert len(ours) == 3 and all(abs(one - other) < 0.02 for one, other in zip(ours, theirs, strict=True))
    assert ours[0] != ours[1] and len(list(table(records))) == 4 and summary(records[0]).startswith("megamoe seed 0")
