"""The only table of chips: instruction sets with what every chip of one has, and GPUs by the name that CUDA gives them.

Sources: PTX ISA (targets, shared memory and tensor memory); CUDA programming guide, "Technical specifications per compute capability";
`cudaGetDeviceProperties` for names and numbers of SMs.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Arch:
    """An instruction set, and the chips that have it.

    capabilities  of the chips
    compiled_for  as ptxas names it; of SM100 the family of chips, whose code is the same to the byte as for "sm_100a" alone
    smem_bytes    shared memory that a CTA can use
    registers     32-bit registers of an SM
    tmem_columns  of tensor memory, 32 bits x 128 lanes each; 0 without any
    features      what kernels ask for: "wgmma"; "tcgen05" (tensor memory, scales copied by UTCCP, MMAs of a CTA pair); "add.f32.bf16"
    """

    name: str
    capabilities: tuple[tuple[int, int], ...]
    compiled_for: str
    smem_bytes: int = field(repr=False)
    registers: int = field(repr=False)
    tmem_columns: int = field(repr=False)
    features: frozenset[str] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    @property
    def has_tensor_memory(self) -> bool:
        """Accumulators in tensor memory; scale factors lie as UTCCP copies them."""
        return self.tmem_columns > 0

    @property
    def adds_bf16(self) -> bool:
        """Whether the hardware adds a BF16 to an FP32 in one instruction."""
        return "add.f32.bf16" in self.features


SMEM_BYTES = 232448  # 227 KiB
REGISTER_FILE = 65536

SM90 = Arch("sm_90a", ((9, 0),), "sm_90a", SMEM_BYTES, REGISTER_FILE, 0, frozenset({"wgmma"}))
SM100 = Arch("sm_100a", ((10, 0), (10, 3)), "sm_100f", SMEM_BYTES, REGISTER_FILE, 512, frozenset({"tcgen05", "add.f32.bf16"}))

ARCHES = {arch.name: arch for arch in (SM100, SM90)}
ARCH_BY_NAME = property(lambda config: ARCHES[config.arch_name])
"""Property `arch` of configurations for both architectures, from their field `arch_name`."""


@dataclass(frozen=True)
class Gpu:
    """A GPU by the name that CUDA reports."""

    name: str
    arch: Arch
    num_sms: int


GPUS = {
    one.name: one
    for one in (
        Gpu("NVIDIA H100 80GB HBM3", SM90, 132),
        Gpu("NVIDIA H200", SM90, 132),
        Gpu("NVIDIA B200", SM100, 148),
        Gpu("NVIDIA GB200", SM100, 152),
        Gpu("NVIDIA B300 SXM6 AC", SM100, 148),
    )
}


def arch_of_capability(capability: tuple[int, int]) -> Arch | None:
    """The instruction set of a compute capability, or None for one that no kernel knows."""
    return next((arch for arch in ARCHES.values() if capability in arch.capabilities), None)
