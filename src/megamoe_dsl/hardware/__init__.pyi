from .fragments import tmem_16x256b as tmem_16x256b
from .fragments import wavefronts as wavefronts
from .operand_tile import BLOCK_K as BLOCK_K
from .operand_tile import SW128 as SW128
from .operand_tile import utccp_row as utccp_row
from .tensor_map import DESCRIPTOR_BYTES as DESCRIPTOR_BYTES
from .tensor_map import TensorMap as TensorMap
from .tensor_map import TensorMapDtype as TensorMapDtype
