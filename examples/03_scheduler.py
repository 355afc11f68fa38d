"""One order of blocks: the host walks it here, and the kernel walks the same object on traced integers."""

from collections import Counter

from megamoe_dsl import Target, choose, preset
from megamoe_dsl.schedule import FC1, FusedMoeOrder

problem = preset("flash").problem(max_tokens_per_rank=256)
config = choose(problem, Target.typical("sm_100a"), 256)
print(f"tiles of 256 weight rows x {config.block_m} tokens, Linear1 {config.lookahead} experts ahead, {config.num_clusters} CTA pairs")

# Tokens that each of this rank's experts received: skewed on purpose.
counts = [200, 0, 97, *([48] * (problem.experts_per_rank - 3))]
walks = {cluster: list(FusedMoeOrder.blocks(config, counts, cluster)) for cluster in range(config.num_clusters)}

print("first blocks of the first pair:")
for block in walks[0][:6]:
    phase = "Linear1" if block.phase == FC1 else "Linear2"
    place = f"pool block {block.pool_block}, {block.valid_m} tokens"
    print(f"  {phase} expert {block.expert:2}, row block {block.m_block}, weight block {block.n_block:2} -> {place}")

# Every block exactly once, whoever computes it.
seen = Counter((b.phase, b.expert, b.m_block, b.n_block) for walk in walks.values() for b in walk)
expected = sum(-(-count // config.block_m) for count in counts) * (config.fc1_n_blocks + config.fc2_n_blocks)
assert len(seen) == expected and set(seen.values()) == {1}
lengths = [len(walk) for walk in walks.values()]
print(f"{expected} blocks, between {min(lengths)} and {max(lengths)} for each pair")
