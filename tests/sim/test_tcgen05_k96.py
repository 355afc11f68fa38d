"""tcgen05.mma with K = 96: 48 bytes of packed FP4 a row, which may go on in another tile, and 3 or 6 scale factors."""

import numpy as np
import pytest
from tcgen05_cases import A_AT, B_AT, BASE, SFA_AT, SFB_AT, SWIZZLE_128, Case, copies, place_scales

from megamoe_dsl.hardware.operand_tile import Swizzle
from megamoe_dsl.sim import SimError, formats, umma
from megamoe_dsl.sim.descriptors import InstructionDescriptor, SmemDescriptor, operand_bytes

LONG = 1 << 31
ABSOLUTE = 1 << 52
NEXT_AT = B_AT + 16384  # a second tile of A, behind the 128 rows of B
START = 96  # bytes into A's rows, so that 32 bytes are left in the first tile


class LongCase(Case):
    """128 x 128 x 96; the rows of A begin 32 bytes before the end of their tile and go on at `NEXT_AT`."""

    def __post_init__(self):
        first, self.scale_id = self.scale_id, 0  # the scales of K = 64 would not fit behind it
        super().__post_init__()
        rng = np.random.default_rng(self.seed)
        self.blocks = 6 if self.kind == "mxf4nvf4" else 3
        table, low, high = (formats.UE4M3, 0x30, 0x40) if self.blocks == 6 else (formats.UE8M0, 124, 131)
        codes = rng.integers(0, 16, (2, 128, 96)).astype(np.uint8)
        scales = rng.integers(low, high, (2, 128, 8)).astype(np.uint8)
        raw = codes[:, :, 0::2] | codes[:, :, 1::2] << 4
        image, rows = self.images[0], np.arange(128)[:, None] * 128
        image[Swizzle(128)(BASE + A_AT + rows + START + np.arange(32)) - BASE] = raw[0, :, :32]
        image[Swizzle(128)(BASE + NEXT_AT + rows + np.arange(16)) - BASE] = raw[0, :, 32:]
        image[Swizzle(128)(BASE + B_AT + rows + np.arange(48)) - BASE] = raw[1]
        for at, values in zip((SFA_AT, SFB_AT), scales, strict=True):
            for k in range(2):
                place_scales(image, at + 512 * k, values[:, 4 * k : 4 * k + 4])
        use = slice(first, first + self.blocks)
        a, b = (formats.E2M1[codes[i]] * table[scales[i, :, use]].repeat(96 // self.blocks, axis=1) for i in range(2))
        self.expected = 2 * (a @ b.T)
        self.descriptor |= LONG | first << 29 | first << 4
        self.a_word = ABSOLUTE | (SWIZZLE_128 & ~(0x3FFF << 16)) | (BASE + NEXT_AT) // 16 << 16 | (BASE + A_AT + START) // 16

    def scale_copies(self):
        return copies(2, 256, SFA_AT, 1) + copies(2, 264, SFB_AT, 1)

    def mma(self, accumulate):
        return super().mma(accumulate).replace(f"scale_vec::{self.blocks}X", "block16" if self.blocks == 6 else "block32")


@pytest.mark.parametrize(("kind", "scale_id"), [("mxf4", 0), ("mxf4", 2), ("mxf4nvf4", 0), ("mxf4nvf4", 2)])
def test_rows_and_scales_go_on(kind, scale_id):
    case = LongCase(kind, 128, 128, 1, seed=scale_id, scale_id=scale_id)
    result, report = case.run()
    np.testing.assert_array_equal(result, case.expected.astype(np.float32))
    assert not report.findings


def test_offsets_of_a_row_that_goes_on():
    descriptor = SmemDescriptor(start=START, leading=4096, stride=1024, span=128, absolute=True)
    where = operand_bytes(descriptor, 9, 48, 1, False)
    assert where[0].tolist() == [*range(96, 128), *range(4096, 4112)]
    assert where[8].tolist() == [1024 + one for one in (*range(96, 128), *range(4096, 4112))]


def test_what_k_96_needs():
    assert InstructionDescriptor.decode(1 << 7 | 1 << 10 | LONG, "mxf4").k_bytes == 48
    with pytest.raises(SimError, match="K = 96; kind::mxf8f6f4 has K = 32"):
        InstructionDescriptor.decode(LONG, "mxf8f6f4")
    with pytest.raises(SimError, match="absolute leading dimension needs the 128-byte swizzle"):
        SmemDescriptor.decode_sm100(ABSOLUTE | 1 << 46)
    assert umma.scale_blocks("mxf4", ("block32",), 48) == 3 and umma.scale_blocks("mxf4nvf4", ("block16",), 48) == 6
