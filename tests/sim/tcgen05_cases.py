"""A hand-written kernel around tcgen05.mma, with its operands and the expected accumulator."""

from dataclasses import dataclass

import numpy as np
from ptx_cases import run

from megamoe_dsl.hardware.operand_tile import Swizzle
from megamoe_dsl.sim import formats

A_AT, B_AT, SFA_AT, SFB_AT = 1024, 17408, 50176, 54272  # offsets from `smem`; the base is hardware offset 1024
IMAGE = 58368
SHARED = f".shared .align 1024 .b8 smem[{IMAGE}];"
BASE = 1024
SWIZZLE_128 = 0x4000404000010000
SCALE_LAYOUT = 0x0000400800010000
CLUSTER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
LOAD_IMAGE = """
mov.u32 %r1, smem;
setp.eq.u32 %p1, %r50, 0;
mov.u32 %r6, %cluster_ctarank;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
@%p1 mbarrier.init.shared::cta.b64 [%r1+8], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
mul.wide.u32 %rd3, %r6, {image};
add.s64 %rd3, %rd50, %rd3;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {count};
add.s32 %r2, %r1, 1024;
add.s64 %rd4, %rd3, 1024;
@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd4], {count}, [%r1];
W0: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra W0;
""".format(image=IMAGE, count=IMAGE - 1024)
ALLOC = """
setp.lt.u32 %p3, %r50, 32;
@!%p3 bra ALLOCATED;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r1+16], 512;
tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
ALLOCATED:
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
ld.shared.u32 %r3, [%r1+16];
"""
WAIT_COMMIT = """
W1: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], 0;
@!%p2 bra W1;
tcgen05.fence::after_thread_sync;
"""
# Thread t of warp w writes columns [0, 256) of its lane, 8 at a time, to out[cta, lane, column].
DUMP = """
shl.b32 %r20, %r6, 17;
shl.b32 %r21, %r50, 10;
add.s32 %r20, %r20, %r21;
cvt.u64.u32 %rd5, %r20;
add.s64 %rd5, %rd51, %rd5;
and.b32 %r22, %r50, 96;
shl.b32 %r22, %r22, 16;
add.s32 %r22, %r22, %r3;
mov.u32 %r23, 0;
D: tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}, [%r22];
tcgen05.wait::ld.sync.aligned;
st.global.v4.u32 [%rd5], {%r30, %r31, %r32, %r33};
st.global.v4.u32 [%rd5+16], {%r34, %r35, %r36, %r37};
add.s64 %rd5, %rd5, 32;
add.s32 %r22, %r22, 8;
add.s32 %r23, %r23, 8;
setp.lt.u32 %p4, %r23, 256;
@%p4 bra D;
"""
FREE = """
tcgen05.fence::before_thread_sync;
bar.sync 0;
@!%p3 bra FREED;
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r3, 512;
FREED:
"""


@dataclass
class Operand:
    """Random rows of one K step: bytes as shared memory holds them (32 per row) and their values."""

    raw: np.ndarray
    values: np.ndarray


def operand(name, rows, rng):
    if name == "e2m1":
        codes = rng.integers(0, 16, (rows, 32)).astype(np.uint8)
        raw = np.full((rows, 2, 16), 0xEE, np.uint8)
        raw[:, :, :8] = (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(rows, 2, 8)
        return Operand(raw.reshape(rows, 32), formats.E2M1[codes])
    if name == "e2m1x2":
        codes = rng.integers(0, 16, (rows, 64)).astype(np.uint8)
        return Operand(codes[:, 0::2] | codes[:, 1::2] << 4, formats.E2M1[codes])
    if name in ("s8", "u8"):
        raw = rng.integers(0, 256, (rows, 32)).astype(np.uint8)
        return Operand(raw, raw.view(np.int8 if name == "s8" else np.uint8).astype(np.float64))
    if name in ("e4m3", "e5m2"):
        raw = rng.integers(0, 0x70, (rows, 32)).astype(np.uint8) | rng.integers(0, 2, (rows, 32)).astype(np.uint8) << 7
        return Operand(raw, (formats.E4M3 if name == "e4m3" else formats.E5M2)[raw])
    count = 8 if name == "tf32" else 16
    values = rng.integers(-8, 9, (rows, count)).astype(np.float32)
    if name == "f16":
        return Operand(values.astype(np.float16).view(np.uint8), values.astype(np.float64))
    raw32 = values.view(np.uint32)
    return Operand(raw32.view(np.uint8) if name == "tf32" else (raw32 >> 16).astype(np.uint16).view(np.uint8), values.astype(np.float64))


def place(image, at, raw):
    """Rows of 32 bytes as K step 0 of a K-major tile with 128-byte swizzle."""
    rows = np.arange(len(raw))[:, None] * 128 + np.arange(32)
    image[Swizzle(128)(BASE + at + rows) - BASE] = raw


def place_scales(image, at, scales):
    """Scale bytes (rows, 4) in the 512-byte atoms that tcgen05.cp.32x128b.warpx4 reads."""
    rows = np.arange(len(scales))
    where = rows // 128 * 512 + rows % 32 * 16 + rows % 128 // 32 * 4
    image[at + where[:, None] + np.arange(4)] = scales


def copies(count, column, at, group):
    """UTCCP of `count` atoms of scale factors."""
    text = ""
    for k in range(count):
        text += f"""
        mov.b64 %rd10, {SCALE_LAYOUT + (BASE + at + 512 * k) // 16};
        add.s32 %r10, %r3, {column + 4 * k};
        @%p5 tcgen05.cp.cta_group::{group}.32x128b.warpx4 [%r10], %rd10;
        """
    return text


KINDS = {  # kind: (A format, B format, code A, code B, values of K)
    "f16": ("f16", "f16", 0, 0),
    "tf32": ("tf32", "tf32", 2, 2),
    "f8f6f4": ("e4m3", "e2m1", 0, 5),
    "i8": ("u8", "s8", 0, 1),
    "mxf8f6f4": ("e2m1", "e4m3", 5, 0),
    "mxf4": ("e2m1x2", "e2m1x2", 1, 1),
    "mxf4nvf4": ("e2m1x2", "e2m1x2", 1, 1),
}


@dataclass
class Case:
    """One kernel: two accumulating MMAs of one kind (the first overwrites), scales from UTCCP when block-scaled."""

    kind: str
    m: int
    n: int
    group: int
    seed: int = 0
    scale_id: int = 0

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        a_name, b_name, a_code, b_code = KINDS[self.kind]
        self.scaled = self.kind.startswith("mx")
        self.a, self.b = operand(a_name, self.m, rng), operand(b_name, self.n, rng)
        k = self.a.values.shape[1]
        self.blocks = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}.get(self.kind, 0)
        rows, columns = self.m // self.group, self.n // self.group
        images = np.zeros((self.group, IMAGE), np.uint8)
        a, b = self.a.values, self.b.values
        if self.scaled:
            table, low, high = (formats.UE4M3, 0x30, 0x40) if self.kind == "mxf4nvf4" else (formats.UE8M0, 124, 131)
            sa, sb = self.scales = [rng.integers(low, high, (r, 4)).astype(np.uint8) for r in (self.m, self.n)]
            use = slice(self.scale_id, self.scale_id + self.blocks)
            a = a * table[sa[:, use]].repeat(k // self.blocks, axis=1)
            b = b * table[sb[:, use]].repeat(k // self.blocks, axis=1)
        for r in range(self.group):
            place(images[r], A_AT, self.a.raw[rows * r : rows * (r + 1)])
            place(images[r], B_AT, self.b.raw[columns * r : columns * (r + 1)])
            if self.scaled:
                place_scales(images[r], SFA_AT, sa[rows * r : rows * (r + 1)])
                place_scales(images[r], SFB_AT, sb)
        self.images = images
        self.expected = 2 * (a @ b.T)  # two accumulating instructions on the same operands
        word = (self.n >> 3) << 17 | (self.m >> 4) << 24 | a_code << 7 | b_code << 10
        word |= (
            (self.scale_id << 29 | self.scale_id << 4 | (self.kind != "mxf4nvf4") << 23)
            if self.scaled
            else (2 if self.kind == "i8" else 1) << 4
        )
        self.descriptor = word
        self.a_word, self.b_word = (SWIZZLE_128 + (BASE + at) // 16 for at in (A_AT, B_AT))

    def mma(self, accumulate):
        scales = "[%r11], [%r12], " if self.scaled else ""
        block = f".block_scale.scale_vec::{self.blocks}X" if self.scaled else ""
        return f"""
        setp.eq.u32 %p6, {int(accumulate)}, 1;
        @%p5 tcgen05.mma.cta_group::{self.group}.kind::{self.kind}{block} [%r3], %rd11, %rd12, %r13, {scales}%p6;
        """

    def scale_copies(self):
        return copies(1, 256, SFA_AT, self.group) + copies(-(-self.n // 128), 264, SFB_AT, self.group)

    def body(self):
        scale_copies = self.scale_copies() if self.scaled else ""
        commit = "@%p5 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r8];"
        if self.group == 2:
            commit = """mov.b16 %h1, 3;
            @%p5 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r8], %h1;"""
        return (
            LOAD_IMAGE
            + ALLOC.format(group=self.group)
            + CLUSTER
            + f"""
            setp.eq.and.u32 %p5, %r6, 0, %p1;
            add.s32 %r8, %r1, 8;
            add.s32 %r11, %r3, 256;
            add.s32 %r12, %r3, 264;
            mov.b32 %r13, {self.descriptor};
            mov.b64 %rd11, {self.a_word};
            mov.b64 %rd12, {self.b_word};
            {scale_copies}
            """
            + self.mma(False)
            + self.mma(True)
            + commit
            + WAIT_COMMIT
            + DUMP
            + FREE.format(group=self.group)
            + CLUSTER
        )

    def run(self, body=None, **options):
        out = np.zeros((self.group, 128, 256), np.float32)
        images = np.zeros(self.images.size + 16, np.uint8)
        start = -images.ctypes.data % 16
        images = images[start : start + self.images.size]
        images[:] = self.images.reshape(-1)
        body = self.body() if body is None else body
        report = run(body, [images, out], block=128, grid=self.group, cluster=self.group, shared=SHARED, **options)
        return self.unfold(out), report

    def unfold(self, out):
        """The accumulator as a matrix, from where the ISA puts it."""
        n = self.n
        if self.m // self.group == 128:
            return out[:, :, :n].reshape(self.m, n)
        if self.group == 2:
            return np.concatenate([np.concatenate([o[:64, : n // 2], o[64:, : n // 2]], axis=1) for o in out])
        rows = np.arange(64)
        return out[0][rows % 16 + 32 * (rows // 16), :n]
