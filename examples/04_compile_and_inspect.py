"""A configuration compiles without a GPU; the artifact says what every role became."""

from megamoe_dsl import Problem, Target, choose, compile_kernel
from megamoe_dsl.inspect import Inspection, differences

shape = {"hidden": 1024, "intermediate": 512, "num_experts": 16, "topk": 4, "num_ranks": 2, "max_tokens_per_rank": 256}
blackwell = choose(Problem(**shape), Target.typical("sm_100a"), 64)
hopper = choose(Problem(**shape, recipe="fp8xfp8"), Target.typical("sm_90a"), 64)

# Line info lets instructions be attributed to roles; it changes none of them.
inspections = []
for config in (blackwell, hopper):
    artifact = compile_kernel(config, line_info=True)
    print(f"{artifact.arch}: tiles of {config.block_m} tokens, {config.num_stages} stages, compiled in {artifact.seconds:.1f} s")
    print(f"  PTX of {artifact.ptx.count(chr(10))} lines, cubin of {len(artifact.cubin)} bytes, {artifact.dynamic_smem} bytes of SMEM")
    print(f"  {artifact.resources.registers} registers a thread at launch, {artifact.resources.stack_bytes} bytes of stack")
    assert artifact.resources.stack_bytes == 0

    inspection = Inspection.of(artifact)
    for use in inspection.registers:
        print(f"  {use.group}: {use.used} of {use.budget} registers")
    for measure in inspection.measures:
        print(f"  {measure.role} per {measure.unit}: {measure.instructions:g} instructions")
    inspections.append(inspection)

# Tensor-core work per K block of 128 channels: four instructions for a pair of CTAs on SM100, eight per warpgroup on SM90.
mma = inspections[0].artifact.histogram("MMA warp")["K block"]
math = inspections[1].artifact.histogram("math")["K block"]
assert (mma["mma"], math["mma"]) == (4, 8)

# What a change did to the code: here, another tile.
larger = compile_kernel(choose(blackwell.problem, Target.typical("sm_100a"), 64, block_m=128), line_info=True)
for change in differences(inspections[0].as_dict(), Inspection.of(larger).as_dict()):
    if change.path in ("config.block_m", "config.stages", "resources.instructions", "measures.mma_k_block.instructions"):
        print(f"  {change.path}: {change.before} -> {change.after}")
