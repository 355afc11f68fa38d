"""TMA tensor copies against numpy slicing: ranks, swizzles, edges, unpacked FP4, multicast, pairs, stores and reductions."""

import numpy as np
import pytest
from ptx_cases import REGISTERS, run

from megamoe_dsl.hardware.operand_tile import Swizzle
from megamoe_dsl.hardware.tensor_map import DESCRIPTOR_BYTES, TensorMap, TensorMapDtype
from megamoe_dsl.sim import Assumptions, GlobalMemory, Launch, Report, SimError, Simulator
from megamoe_dsl.sim.chunks import PADDING_POISON

BOX_OFFSET = 1024  # of the box from `smem`
SHARED = ".shared .align 1024 .b8 smem[33792];"
NUMPY = {TensorMapDtype.U8: np.uint8, TensorMapDtype.U16: np.uint16, TensorMapDtype.F32: np.float32, TensorMapDtype.U64: np.uint64}
ACQUIRE = "@%p1 fence.proxy.tensormap::generic.acquire.sys [%rd50], 128;"
# One warp: thread 0 loads (or stores) the box, then all copy shared memory to (or from) `out` in 4-byte words.
SETUP = f"""
mov.u32 %r1, smem;
add.s32 %r2, %r1, 1024;
setp.eq.u32 %p1, %r50, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
{ACQUIRE}
bar.sync 0;
"""
WAIT = """
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
@!%p2 bra W;
"""
COPY_LOOP = """
mov.u32 %r20, %r50;
L: setp.ge.u32 %p5, %r20, {words};
@%p5 bra M;
shl.b32 %r21, %r20, 2;
add.s32 %r22, %r2, %r21;
cvt.u64.u32 %rd1, %r21;
add.s64 %rd2, %rd51, %rd1;
{move}
add.s32 %r20, %r20, 32;
bra L;
M:
"""
TO_GLOBAL = "ld.shared.u32 %r23, [%r22]; st.global.u32 [%rd2], %r23;"
TO_SHARED = "ld.global.u32 %r23, [%rd2]; st.shared.u32 [%r22], %r23;"


class Tensor:
    """A global array (C order, so numpy axes are reversed TMA dims) with its tensor map, 16-byte aligned."""

    def __init__(self, shape, box, dtype=TensorMapDtype.U8, span=0, pitch=None, seed=0):
        numpy_type = NUMPY[dtype]
        inner_bytes = shape[-1] * np.dtype(numpy_type).itemsize
        self.pitch = pitch or -(-inner_bytes // 32) * 32
        rows = int(np.prod(shape[:-1], dtype=int))
        store = np.zeros(rows * self.pitch + 256, np.uint8)
        start = -store.ctypes.data % 128
        self.bytes = store[start : start + rows * self.pitch]
        self.bytes[:] = np.random.default_rng(seed).integers(1, 255, len(self.bytes))
        self.view = self.bytes.reshape(*shape[:-1], self.pitch)[..., :inner_bytes].view(numpy_type)
        strides = [self.pitch]
        for extent in shape[-2:0:-1]:
            strides.append(strides[-1] * extent)
        dims = tuple(shape[::-1])
        self.map = TensorMap(self.bytes.ctypes.data, dtype, dims, tuple(strides[: len(shape) - 1]), tuple(box[::-1]), span)

    def box(self, start):
        """Expected box at numpy-order coordinates, zero outside."""
        extents = self.map.box[::-1]
        out = np.zeros(extents, self.view.dtype)
        index = [np.arange(s, s + e) for s, e in zip(start, extents, strict=True)]
        inside = [(i >= 0) & (i < n) for i, n in zip(index, self.view.shape, strict=True)]
        out[np.ix_(*inside)] = self.view[np.ix_(*(i[k] for i, k in zip(index, inside, strict=True)))]
        return out


def aligned_descriptor(tensor_map):
    store = np.zeros(DESCRIPTOR_BYTES + 128, np.uint8)
    start = -store.ctypes.data % 128
    out = store[start : start + DESCRIPTOR_BYTES]
    out[:] = np.frombuffer(tensor_map.encode(), np.uint8)
    return out


def coordinates(start):
    return "{" + ", ".join(str(c) for c in start[::-1]) + "}"


def load_text(tensor, start, extra="", space="cta"):
    return f"""
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {tensor.map.transaction_bytes};
    @%p1 cp.async.bulk.tensor.{tensor.map.rank}d{extra}.shared::{space}.global.tile.mbarrier::complete_tx::bytes
         [%r2], [%rd50, {coordinates(start)}], [%r1];
    """


def launch(body, tensor, out, **options) -> Report:
    return run(body, [aligned_descriptor(tensor.map), out, tensor.bytes], shared=SHARED, **options)


def load(tensor, start, **options):
    out = np.zeros(tensor.map.box_bytes // 4, np.uint32)
    copy = COPY_LOOP.format(words=len(out), move=TO_GLOBAL)
    report = launch(SETUP + load_text(tensor, start) + WAIT + copy, tensor, out, **options)
    assert (report.findings, dict(report.warnings)) == ([], {})
    linear = np.arange(tensor.map.box_bytes)
    return out.view(np.uint8)[Swizzle(tensor.map.swizzle)(linear + 2 * BOX_OFFSET) - 2 * BOX_OFFSET]


@pytest.mark.parametrize(
    ("shape", "box", "start"),
    [
        ((200,), (64,), (100,)),
        ((20, 96), (4, 32), (3, 16)),
        ((5, 20, 96), (2, 3, 32), (1, 4, 8)),
        ((3, 5, 20, 96), (2, 1, 3, 32), (1, 2, 5, 0)),
        ((2, 3, 5, 20, 96), (2, 1, 2, 3, 16), (0, 1, 2, 3, 4)),
    ],
)
def test_load_of_every_rank(shape, box, start):
    tensor = Tensor(shape, box)
    np.testing.assert_array_equal(load(tensor, start), tensor.box(start).reshape(-1))


@pytest.mark.parametrize("dtype", list(NUMPY))
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_load_with_swizzle_and_types(dtype, span):
    inner = (span or 64) // np.dtype(NUMPY[dtype]).itemsize
    tensor = Tensor((40, 128), (16, inner), dtype, span)
    np.testing.assert_array_equal(load(tensor, (8, 16)), tensor.box((8, 16)).reshape(-1).view(np.uint8))


@pytest.mark.parametrize("start", [(-2, 0), (18, 0), (0, -8), (0, 80), (19, 95), (-3, -31), (40, 0), (0, 200), (-4, 0)])
def test_out_of_bounds_reads_zero(start):
    tensor = Tensor((20, 96), (4, 32))
    np.testing.assert_array_equal(load(tensor, start), tensor.box(start).reshape(-1))


@pytest.mark.parametrize("span", [0, 128])
def test_unpacked_fp4_has_padding_and_counts_packed_bytes(span):
    packed = np.random.default_rng(1).integers(0, 256, (24, 128), np.uint8)
    store = np.zeros(packed.nbytes + 128, np.uint8)
    start = -store.ctypes.data % 32
    store[start : start + packed.nbytes] = packed.reshape(-1)
    tensor = Tensor((1, 32), (1, 32))
    tensor.bytes = store[start : start + packed.nbytes]
    tensor.map = TensorMap(tensor.bytes.ctypes.data, TensorMapDtype.FP4_UNPACKED, (256, 24), (128,), (128, 16), span)
    loaded = load(tensor, (8, 128)).reshape(16, 8, 16)
    np.testing.assert_array_equal(loaded[:, :, :8].reshape(16, 64), packed[8:24, 64:])
    assert (loaded[:, :, 8:] == PADDING_POISON).all()


def test_descriptor_in_parameter_space():
    tensor = Tensor((20, 96), (4, 32))
    out = np.zeros(32, np.uint32)
    text = f"""
    .version 8.8
    .target sm_100a
    .address_size 64
    {SHARED}
    .visible .entry kernel(.param .align 128 .b8 map[128], .param .u64 a1)
    {{
    {REGISTERS}
    mov.b64 %rd49, map;
    cvta.param.u64 %rd50, %rd49;
    ld.param.b64 %rd51, [a1];
    mov.u32 %r50, %tid.x;
    {SETUP.replace(ACQUIRE, "") + load_text(tensor, (2, 16)) + WAIT + COPY_LOOP.format(words=32, move=TO_GLOBAL)}
    ret;
    }}
    """
    memory = GlobalMemory()
    memory.add(tensor.bytes, "tensor")
    arguments = (tensor.map.encode(), memory.add(out, "out"))
    report = Simulator(text, memory).run([Launch((1, 1, 1), (32, 1, 1), args=arguments)])
    assert report.findings == []
    np.testing.assert_array_equal(out.view(np.uint8), tensor.box((2, 16)).reshape(-1))


def store_text(tensor, start, operation=None, fence="fence.proxy.async.shared::cta;"):
    prefix = "cp.async.bulk.tensor" if operation is None else "cp.reduce.async.bulk.tensor"
    middle = "" if operation is None else f".{operation}"
    return f"""
    {fence}
    bar.warp.sync 0xffffffff;
    @%p1 {prefix}.{tensor.map.rank}d.global.shared::cta{middle}.tile.bulk_group [%rd50, {coordinates(start)}], [%r2];
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;
    """


def store(tensor, start, values, operation=None, **options):
    source = np.zeros(tensor.map.box_bytes, np.uint8)
    linear = np.arange(len(source))
    source[Swizzle(tensor.map.swizzle)(linear + 2 * BOX_OFFSET) - 2 * BOX_OFFSET] = values.reshape(-1).view(np.uint8)
    fill = COPY_LOOP.format(words=len(source) // 4, move=TO_SHARED)
    return launch(SETUP + fill + store_text(tensor, start, operation), tensor, source.view(np.uint32), **options)


@pytest.mark.parametrize("start", [(3, 16), (-2, -8), (18, 80), (30, 0)])
@pytest.mark.parametrize(("seed", "race"), [(0, True), (1, False)])
def test_store_clips_at_the_edges(start, seed, race):
    tensor = Tensor((20, 96), (4, 32), span=32)
    values = np.random.default_rng(9).integers(0, 255, (4, 32), np.uint8)
    expected, pitch_before = tensor.view.copy(), tensor.bytes.copy().reshape(20, -1)[:, 96:]
    for r in range(4):
        for c in range(32):
            if 0 <= start[0] + r < 20 and 0 <= start[1] + c < 96:
                expected[start[0] + r, start[1] + c] = values[r, c]
    report = store(tensor, start, values, seed=seed, race=race)
    np.testing.assert_array_equal(tensor.view, expected)
    np.testing.assert_array_equal(tensor.bytes.reshape(20, -1)[:, 96:], pitch_before)
    assert not report.findings


def test_reduction_adds():
    tensor = Tensor((8, 32), (4, 16), TensorMapDtype.F32)
    tensor.view[:] = np.arange(256).reshape(8, 32)
    values = np.full((4, 16), 0.5, np.float32)
    expected = tensor.view.copy()
    expected[2:6, 16:] += 0.5
    report = store(tensor, (2, 16), values, "add")
    np.testing.assert_array_equal(tensor.view, expected)
    assert not report.findings


def test_store_without_proxy_fence_is_found():
    tensor = Tensor((20, 96), (4, 32))
    fill = COPY_LOOP.format(words=32, move=TO_SHARED)
    report = launch(SETUP + fill + store_text(tensor, (0, 0), fence=""), tensor, np.zeros(32, np.uint32))
    assert {f.kind for f in report.findings} == {"missing fence.proxy.async before async-proxy read"}


@pytest.mark.parametrize(
    ("fence", "found"),
    [
        (ACQUIRE, False),
        (ACQUIRE.replace("%p1", "%p2") + "bar.sync 0;", False),
        ("", True),
        (ACQUIRE.replace("%p1", "%p2"), True),
        (ACQUIRE.replace("sys", "gpu"), True),
        (ACQUIRE.replace("%rd50", "%rd50+64"), True),
        (ACQUIRE.replace("%p1", "%p3"), True),
        ("fence.proxy.tensormap::generic.release.sys;", True),
    ],
    ids=["own", "other warp, ordered", "none", "other warp, unordered", "scope", "other map", "other CTA", "release"],
)
@pytest.mark.parametrize("copy", [load_text, store_text], ids=["load", "store"])
def test_a_map_in_global_memory_needs_a_fence_of_the_cta(copy, fence, found):
    tensor = Tensor((20, 96), (4, 32))
    fill = COPY_LOOP.format(words=32, move=TO_SHARED) if copy is store_text else ""
    who = """
    setp.eq.u32 %p2, %r50, 32;
    mov.u32 %r30, %ctaid.x;
    setp.eq.u32 %p3, %r30, 1;
    """
    wait = WAIT if copy is load_text else ""
    body = SETUP.replace(ACQUIRE, "") + who + fill + fence + "@%p3 bra E;" + copy(tensor, (0, 0)) + wait + "E:"
    report = launch(body, tensor, np.zeros(32, np.uint32), block=64, grid=2)
    kinds = {finding.kind for finding in report.findings}
    assert kinds == ({"tensor map used without fence.proxy.tensormap"} if found else set())


@pytest.mark.parametrize("writer", [0, 32])
def test_generic_global_write_needs_a_proxy_fence_before_a_load(writer):
    """The fence of the thread that loads covers what another warp wrote before a barrier, too."""
    tensor = Tensor((20, 96), (4, 32))
    kinds = {}
    for fence in ("", "fence.proxy.async.global;", "fence.proxy.async;", "fence.proxy.async.shared::cta;"):
        write = f"setp.eq.u32 %p4, %r50, {writer}; @%p4 st.global.u32 [%rd52], 7; bar.sync 0;\n@%p1 {fence or 'bar.warp.sync 1;'}\n"
        body = SETUP + write + load_text(tensor, (0, 0)) + WAIT
        kinds[fence] = {f.kind for f in launch(body, tensor, np.zeros(32, np.uint32), block=64).findings}
    missing = {"missing fence.proxy.async before async-proxy read"}
    assert list(kinds.values()) == [missing, set(), set(), missing]


def test_store_of_uninitialized_memory_is_an_error():
    tensor = Tensor((20, 96), (4, 32))
    with pytest.raises(SimError, match="TMA store reads uninitialized shared memory"):
        launch(SETUP + store_text(tensor, (0, 0)), tensor, np.zeros(32, np.uint32))
    report = launch(SETUP + store_text(tensor, (0, 0)), tensor, np.zeros(32, np.uint32), assumptions=Assumptions(store_uninitialized=True))
    assert [text.split(":")[0] for text in report.warnings] == ["TMA store reads uninitialized shared memory"]


def test_store_issued_by_all_lanes_is_a_warning():
    tensor = Tensor((20, 96), (4, 32))
    fill = COPY_LOOP.format(words=32, move=TO_SHARED)
    body = SETUP + fill + store_text(tensor, (0, 0)).replace("@%p1", "")
    report = launch(body, tensor, np.ones(32, np.uint32))
    assert any("performed once" in text for text in report.warnings)
    assert not report.findings


CLUSTER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"


def test_multicast_load():
    tensor = Tensor((20, 96), (4, 32))
    body = (
        SETUP
        + CLUSTER
        + f"""
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 128;
    mov.u32 %r6, %cluster_ctarank;
    setp.eq.and.u32 %p3, %r6, 1, %p1;
    mov.b16 %h1, 3;
    @%p3 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
         [%r2], [%rd50, {coordinates((2, 16))}], [%r1], %h1;
    shl.b32 %r7, %r6, 7;
    cvt.u64.u32 %rd3, %r7;
    add.s64 %rd51, %rd51, %rd3;
    """
        + WAIT
        + COPY_LOOP.format(words=32, move=TO_GLOBAL)
        + CLUSTER
    )
    out = np.zeros(64, np.uint32)
    report = launch(body, tensor, out, grid=2, cluster=2)
    np.testing.assert_array_equal(out.view(np.uint8).reshape(2, -1), np.tile(tensor.box((2, 16)).reshape(1, -1), (2, 1)))
    assert not report.findings


def pair_load(group):
    """Both CTAs load into their own memory and count the bytes on the barrier of the even CTA, which waits for both."""
    tensor = Tensor((20, 96), (4, 32))
    body = (
        SETUP
        + CLUSTER
        + f"""
    and.b32 %r8, %r1, 0xFEFFFFFF;
    mov.u32 %r6, %cluster_ctarank;
    setp.eq.and.u32 %p3, %r6, 0, %p1;
    @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
    @%p1 cp.async.bulk.tensor.2d{group}.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd50, {{%r6, 2}}], [%r8];
    setp.ne.u32 %p4, %r6, 0;
    @%p4 bra DONE;
    """
        + WAIT
        + "DONE:\n"
        + CLUSTER
        + """
    shl.b32 %r7, %r6, 7;
    cvt.u64.u32 %rd3, %r7;
    add.s64 %rd51, %rd51, %rd3;
    """
        + COPY_LOOP.format(words=32, move=TO_GLOBAL)
    )
    out = np.zeros(64, np.uint32)
    report = launch(body, tensor, out, grid=2, cluster=2)
    expected = np.stack([tensor.box((2, 0)), tensor.box((2, 1))]).reshape(2, -1)
    np.testing.assert_array_equal(out.view(np.uint8).reshape(2, -1), expected)
    assert not report.findings


def test_cta_pair_counts_on_the_even_barrier():
    pair_load(".cta_group::2")


def test_barrier_of_another_cta_needs_cta_group_2():
    with pytest.raises(SimError, match=r"only .cta_group::2 may"):
        pair_load("")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[%r2]", "[%r2+16]", "128-byte aligned"),
        ("[%r2]", "[%r2+33280]", "shared access out of bounds"),
        ("{0, 0}", "{0, 0, 0}", "3 coordinates for a 2d copy"),
        (".2d.", ".3d.", "2 coordinates for a 3d copy"),
        ("[%rd50,", "[%rd50+32,", "64-byte aligned"),
        ("[%rd50,", "[%rd52,", "bad tensor map|rank"),
        (".tile", ".im2col", "im2col"),
    ],
)
def test_bad_loads(old, new, message):
    tensor = Tensor((20, 96), (4, 32))
    with pytest.raises(SimError, match=message):
        launch(SETUP + load_text(tensor, (0, 0)).replace(old, new) + WAIT, tensor, np.zeros(32, np.uint32))


def test_box_outside_the_allocation_is_an_error():
    tensor = Tensor((20, 96), (4, 32))
    tensor.map = TensorMap(tensor.map.address, TensorMapDtype.U8, (96, 400), tensor.map.strides, (32, 4))
    with pytest.raises(SimError, match="global access out of bounds"):
        launch(SETUP + load_text(tensor, (300, 0)) + WAIT, tensor, np.zeros(32, np.uint32))
