"""Tensor maps that a kernel changes: every field of tensormap.replace, and the order that the tensormap proxy asks for."""

from dataclasses import replace

import numpy as np
import pytest
from ptx_cases import run
from test_tensor_copy import aligned_descriptor

from megamoe_dsl.hardware.tensor_map import DESCRIPTOR_BYTES, TensorMap, TensorMapDtype
from megamoe_dsl.sim import SimError
from megamoe_dsl.sim.ops.tensormap import replace_field

SHARED = ".shared .align 128 .b8 smem[1024];"
MAP = TensorMap(1 << 20, TensorMapDtype.F32, (64, 32, 8), (256, 8192), (16, 4, 2), 64)
UNUSED = "tensor map used without fence.proxy.tensormap"


@pytest.mark.parametrize(
    ("field", "ordinal", "value", "expected"),
    [
        ("global_address", 0, 0x7FAB00001230, replace(MAP, address=0x7FAB00001230)),
        ("rank", 0, 1, replace(MAP, dims=(64, 32), strides=(256,), box=(16, 4))),
        ("global_dim", 0, 48, replace(MAP, dims=(48, 32, 8))),
        ("global_dim", 2, 5, replace(MAP, dims=(64, 32, 5))),
        ("global_stride", 0, 1024, replace(MAP, strides=(1024, 8192))),
        ("global_stride", 1, 1 << 38, replace(MAP, strides=(256, 1 << 38))),
        ("box_dim", 0, 8, replace(MAP, box=(8, 4, 2))),
        ("box_dim", 2, 8, replace(MAP, box=(16, 4, 8))),
        ("elemtype", 0, 10, replace(MAP, dtype=TensorMapDtype.BF16)),
        ("elemtype", 0, 11, replace(MAP, dtype=TensorMapDtype.TF32)),
        ("swizzle_mode", 0, 3, replace(MAP, swizzle=128)),
        ("swizzle_mode", 0, 0, replace(MAP, swizzle=0)),
        ("element_stride", 1, 1, MAP),
        ("fill_mode", 0, 0, MAP),
    ],
)
def test_fields(field, ordinal, value, expected):
    descriptor = np.frombuffer(MAP.encode(), np.uint8)
    assert TensorMap.decode(replace_field(descriptor, field, ordinal, value).tobytes()) == expected


REFUSED = [("element_stride", 2), ("fill_mode", 1), ("swizzle_mode", 4), ("elemtype", 99), ("global_stride", 8)]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_what_is_not_modelled_is_refused(field, value):
    with pytest.raises(SimError, match=r"tensormap\.replace"):
        replace_field(np.frombuffer(MAP.encode(), np.uint8), field, 0, value)


COPY_IN = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r50, 0; shl.b32 %r2, %r50, 2; cvt.u64.u32 %rd1, %r2; add.s64 %rd2, %rd50, %rd1;
ld.global.b32 %r3, [%rd2]; add.s32 %r4, %r1, %r2; st.shared.b32 [%r4], %r3; bar.warp.sync 0xffffffff;
@%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %rd52;
@%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 0, 8;
bar.warp.sync 0xffffffff;
"""
PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd50], [%r1], 128;\n"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd50], 128;\n"
LOAD = """@%p1 mbarrier.init.shared::cta.b64 [%r1+128], 1; bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+128], 64;
@%p1 cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+256], [%rd50, {0}], [%r1+128];
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+128], 0;
@!%p2 bra W;
setp.ge.u32 %p3, %r50, 16; @%p3 bra OUT;
add.s32 %r5, %r1, %r2; ld.shared.b32 %r6, [%r5+256]; add.s64 %rd3, %rd51, %rd1; st.global.b32 [%rd3], %r6;
OUT:
"""


def aligned_words(count, fill):
    store = np.zeros(count + 32, np.uint32)
    words = store[-store.ctypes.data % 128 // 4 :][:count]
    words[:] = fill
    return words


def launch(body, **options):
    """A map of 16 words is redirected to other data, of which it covers 8; returns what a load gets, and the kinds of findings."""
    old, new, out = aligned_words(16, 1), aligned_words(16, np.arange(10, 26)), np.zeros(16, np.uint32)
    descriptor = aligned_descriptor(TensorMap(old.ctypes.data, TensorMapDtype.U32, (16,), (), (16,)))
    report = run(body, [descriptor.view(np.uint32), out, new], shared=SHARED, **options)
    return out.tolist(), {f.kind for f in report.findings}


@pytest.mark.parametrize("race", [True, False])
def test_a_changed_map_is_used(race):
    expected = [*range(10, 18)] + [0] * 8
    assert launch(COPY_IN + PUBLISH + ACQUIRE + LOAD, race=race) == (expected, set())


def test_a_map_is_published_when_its_change_is_known():
    begun, changed, _ = COPY_IN.rpartition("bar.warp.sync 0xffffffff;")
    assert changed and launch(begun + PUBLISH + ACQUIRE + LOAD)[1] == {"RAW race"}


@pytest.mark.parametrize("fences", ["", ACQUIRE + PUBLISH, "fence.proxy.tensormap::generic.acquire.sys [%rd50], 128;" + PUBLISH])
def test_a_change_must_be_acquired_after_it(fences):
    body = COPY_IN + (fences or PUBLISH) + LOAD
    assert launch(body)[1] == {UNUSED}


def test_a_change_in_global_memory_needs_a_release():
    change = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r50, 0; shl.b32 %r2, %r50, 2; cvt.u64.u32 %rd1, %r2;
    @%p1 tensormap.replace.tile.global_address.global.b1024.b64 [%rd50], %rd52;\n"""
    release = "fence.proxy.tensormap::generic.release.gpu;\n"
    assert launch(change + release + ACQUIRE + LOAD) == ([*range(10, 26)], set())
    assert launch(change + ACQUIRE + LOAD)[1] == {UNUSED}


@pytest.mark.parametrize(("wait", "scope", "found"), [(True, "gpu", False), (False, "gpu", True), (True, "cta", True)])
def test_another_cta_must_know_of_the_change_and_be_in_scope(wait, scope, found):
    """CTA 0 changes the map and sets a flag (the last word of `out`); CTA 1 uses it."""
    other = ACQUIRE.replace(".gpu", f".{scope}")
    spin = "SPIN: ld.acquire.gpu.global.b32 %r9, [%rd51+60]; setp.eq.u32 %p5, %r9, 0; @%p5 bra SPIN;"
    polls = spin if wait else spin.replace("acquire.gpu", "relaxed.gpu")
    body = f"""mov.u32 %r7, %ctaid.x; setp.eq.u32 %p4, %r7, 1; @%p4 bra USER;
    {COPY_IN} {PUBLISH} bar.warp.sync 0xffffffff; @%p1 st.release.gpu.global.b32 [%rd51+60], 1; bra END;
    USER: mov.u32 %r1, smem; setp.eq.u32 %p1, %r50, 0; shl.b32 %r2, %r50, 2; cvt.u64.u32 %rd1, %r2;
    {polls} {other} {LOAD.replace("%r50, 16;", "%r50, 15;")}
    END:"""
    assert (UNUSED in launch(body, grid=2)[1]) == found


def test_maps_in_shared_memory_are_aligned():
    with pytest.raises(SimError, match=f"{DESCRIPTOR_BYTES}-byte aligned"):
        launch(COPY_IN.replace("b1024.b64 [%r1]", "b1024.b64 [%r1+64]"))


def test_only_the_fields_of_a_map_need_to_be_written():
    """Kernels copy the first 64 bytes; fewer are an error."""
    copied = COPY_IN.replace("st.shared.b32 [%r4], %r3;", "setp.lt.u32 %p6, %r50, {0}; @%p6 st.shared.b32 [%r4], %r3;")
    assert launch(copied.replace("{0}", "16") + PUBLISH + ACQUIRE + LOAD) == ([*range(10, 18)] + [0] * 8, set())
    with pytest.raises(SimError, match=r"uninitialized shared memory.*smem\+60"):
        launch(copied.replace("{0}", "15") + PUBLISH + ACQUIRE + LOAD)
