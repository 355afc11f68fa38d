"""A kernel exported ahead of time, loaded by a process that has no DSL; with a GPU it would be launched like any function."""

import subprocess
import sys
import tempfile

from megamoe_dsl import Problem, Target, choose, export_kernel

LOAD = """
import sys

sys.modules["cutlass"] = None  # any import of the DSL now raises ImportError

from megamoe_dsl import ExportedKernel

kernel = ExportedKernel(sys.argv[1])
manifest = kernel.manifest
print(f"loaded {manifest['library']} for {manifest['arch']}: {kernel.config.block_m} tokens a tile")
print(f"  grid {manifest['grid']}, block {manifest['block']}, {manifest['dynamic_smem']} bytes of SMEM")
print(f"  arguments: {', '.join(kernel.argument_names)}")

# The launcher checks what it is given before it calls CUDA.
try:
    kernel([0, 0, 0], 0)
except ValueError as error:
    print(f"  ValueError: {error}")

# A launch is kernel(buffers.arguments(...), torch.cuda.current_stream().cuda_stream), see runtime/rank_kernel.py for the buffers.
assert sys.modules.pop("cutlass") is None and "cutlass" not in sys.modules
print("  the DSL was not imported")
"""

problem = Problem(hidden=512, intermediate=256, num_experts=8, topk=2, num_ranks=2, max_tokens_per_rank=64, recipe="fp8xfp8")
config = choose(problem, Target.typical("sm_90a", 132), 64)
with tempfile.TemporaryDirectory() as folder:
    files = export_kernel(config, folder)
    for path in files.files:
        print(f"wrote {path.name}: {path.stat().st_size:,} bytes")
    subprocess.run([sys.executable, "-c", LOAD, str(files.manifest)], check=True)
