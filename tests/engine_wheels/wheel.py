"""Wheels of serving engines, unpacked to their Python files.

`make engines` downloads them; nothing of them is committed but a record of what the adapters touch (record.py).
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "engines"


@dataclass(frozen=True)
class Wheel:
    """One release of an engine.

    group         the constant that names its entry-point group of plug-ins
    requirements  packages that its Python files import; installed beside it
    alone         those of them that would bring torch; installed without what they require
    stubs         packages of compiled code; stand-ins take their place (stubs.py)
    """

    name: str
    version: str
    group: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...]
    stubs: tuple[str, ...]

    @property
    def adapter(self) -> list[Path]:
        """The modules of this package that plug into it, those that begin with its name, and what they name without a statement."""
        modules = (ROOT / "src" / "megamoe_dsl" / "compat" / "engines").glob(f"{self.name}*.py")
        return [*sorted(modules), Path(__file__).with_name("by_name.py")]

    @property
    def sources(self) -> Path:
        """The unpacked Python files."""
        return BUILD / f"{self.name}-{self.version}"

    @property
    def site(self) -> Path:
        """Where the requirements are installed."""
        return BUILD / f"{self.name}-{self.version}-site"

    def fetch(self) -> None:
        """Downloads and unpacks what is not there yet.  Raises CalledProcessError where pip cannot."""
        pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
        if not self.sources.is_dir():
            partial = self.sources.with_suffix(".partial")
            rmtree(partial, ignore_errors=True)
            downloads = BUILD / "downloads"
            subprocess.run([*pip, "download", "--no-deps", "--dest", downloads, f"{self.name}=={self.version}"], check=True)
            (archive,) = downloads.glob(f"{self.name}-{self.version}-*.whl")
            unpack_python(archive, partial)
            partial.rename(self.sources)
        if not self.site.is_dir():
            partial = self.site.with_suffix(".partial")
            rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for names in (self.requirements, ("--no-deps", *self.alone)):
                if names[-1:] not in ((), ("--no-deps",)):
                    subprocess.run([*pip, "install", "--target", partial, *names], check=True)
            partial.rename(self.site)


def unpack_python(archive: Path, folder: Path) -> None:
    """The Python files and the metadata of a wheel; its other folders, empty."""
    with ZipFile(archive) as wheel:
        for one in wheel.infolist():
            (folder / one.filename).parent.mkdir(parents=True, exist_ok=True)
            if one.filename.endswith(".py") or ".dist-info/" in one.filename:
                wheel.extract(one, folder)


SGLANG_REQUIREMENTS = (
    "IPython aiohttp dill einops fastapi gguf msgspec openai orjson partial-json-parser pillow psutil pybase64 pyzmq requests sentencepiece"
)
VLLM_REQUIREMENTS = (
    "aiohttp blake3 cachetools cbor2 cloudpickle einops fastapi gguf ijson msgspec openai openai-harmony orjson oss-harmony pillow protobuf"
    " partial-json-parser prometheus_client psutil py-cpuinfo pybase64 pyzmq requests sentencepiece setproctitle tiktoken uvloop watchfiles"
)
VLLM_STUBS = (
    "cv2 deep_gemm depyf flashinfer humming llguidance lmformatenforcer mistral_common numba outlines_core quack tilelang torchaudio"
    " torchvision triton tvm_ffi xgrammar"
)
WHEELS = {
    one.name: one
    for one in (
        Wheel(
            "sglang",
            "0.5.23",
            group="sglang.srt.plugins.GENERAL_PLUGINS_GROUP",
            requirements=tuple(SGLANG_REQUIREMENTS.split()),
            alone=("compressed-tensors", "loguru"),
            stubs=("sgl_kernel", "torchvision", "triton"),
        ),
        Wheel(
            "vllm",
            "0.33.0",
            group="vllm.plugins.DEFAULT_PLUGINS_GROUP",
            requirements=tuple(VLLM_REQUIREMENTS.split()),
            alone=(),
            stubs=tuple(VLLM_STUBS.split()),
        ),
    )
}
