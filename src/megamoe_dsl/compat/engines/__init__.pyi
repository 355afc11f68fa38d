from . import sglang as sglang
from . import vllm as vllm
