"""Which block a CTA works on next: orders of blocks, and one scheduler that walks them on the host and in kernels."""

from .dense import DenseBlock, DenseOrder
from .fused_moe import FC1, FC2, Block, FusedMoeOrder, HostTable
from .grouped import GroupedBlock, GroupedOrder
from .ring import RingOrder
from .scheduler import Order, Scheduler

__all__ = [
    "FC1",
    "FC2",
    "Block",
    "DenseBlock",
    "DenseOrder",
    "FusedMoeOrder",
    "GroupedBlock",
    "GroupedOrder",
    "HostTable",
    "Order",
    "RingOrder",
    "Scheduler",
]
