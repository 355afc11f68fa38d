from .dense import DenseBlock as DenseBlock
from .dense import DenseOrder as DenseOrder
from .fused_moe import FC1 as FC1
from .fused_moe import FusedMoeOrder as FusedMoeOrder
