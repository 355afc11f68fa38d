"""From a shape to a tuned kernel: a prediction, what limits it, a timeline for Perfetto, then times on a GPU.

Without a GPU it predicts, and names the two commands that need one. docs/tutorials/tuned_kernel.md walks through it.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch

SHAPE = ("--preset", "flash", "--tokens", "64")
MODEL = (str(Path(__file__).parents[1] / "bench" / "predict.py"), *SHAPE, "--gpu", "H200")


def run(*arguments: str) -> str:
    """What Python prints with these arguments."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


# 1. Predict: the time of a call, what is busy, and what a resource that is a fifth better would save.
point = json.loads(run(*MODEL, "--json"))["points"][0]
busy = ", ".join(f"{name} {share:.0%}" for name, share in point["busy"].items())
print(f"predicted {point['us']:.0f} us at {point['clock_ghz']:.2f} GHz; {busy}")
limit, gain = max(point["gains"].items(), key=lambda item: item[1])
print(f"the limit is {limit}: a fifth more of it would save {gain:.0%}")
assert limit == "HBM"  # with few tokens a layer reads weights

# 2. The roofline of that: bytes of the weights that are read, over the time.
hidden, intermediate, experts = 4096, 2048, 32
read = experts * 3 * hidden * intermediate
print(f"{read / 1e9:.2f} GB of weights in {point['us']:.0f} us are {read / point['us'] / 1e6:.2f} TB/s of an H200's 4.8")

# 3. Compare: other tiles, leads and rings. Below 5 % the model has no preference.
print(run(*MODEL, "--compare"))

# 4. A timeline: open the file at ui.perfetto.dev.
run(*MODEL, "--trace", "launch.json")
events = json.loads(Path("launch.json").read_text())["traceEvents"]
print(f"launch.json: {len(events)} events")
assert any(one["ph"] == "X" for one in events)

# 5. Tune: time the candidates, and keep the fastest in the table.
if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
    share = ("--ranks", "1", "--experts-per-rank", str(experts))
    print(run("-m", "megamoe_dsl", "bench", *SHAPE, *share))
    print(run("-m", "megamoe_dsl", "tune", *SHAPE, *share))
else:
    print("on a Hopper GPU: megamoe bench --preset flash --tokens 64 --ranks 1 --experts-per-rank 32, then megamoe tune with the same")
