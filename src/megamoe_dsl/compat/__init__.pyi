from . import deep_gemm as deep_gemm
from . import engines as engines
from . import transformers as transformers
