from . import mbarrier as mbarrier
from .launch import launcher as launcher
from .location import attribute_lines as attribute_lines
from .memory import store_f32 as store_f32
from .ring import Stage as Stage
from .tma import acquire_tensor_map as acquire_tensor_map
from .warp import ClusterPlace as ClusterPlace
from .warp import smem_base as smem_base
