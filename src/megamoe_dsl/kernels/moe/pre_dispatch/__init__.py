"""The inputs stage: BF16 tokens and routing into the symmetric buffer, in one launch."""
