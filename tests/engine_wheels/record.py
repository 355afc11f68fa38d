"""What the adapters touch of each engine, with its release: `record.py` takes it from the unpacked wheels, tests compare with it.

python record.py sglang vllm
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from sources import Sources
from touched import touched
from wheel import WHEELS, Wheel

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Record:
    """Signatures by dotted name (sources.py), of one release."""

    engine: str
    version: str
    names: dict[str, str]

    @classmethod
    def load(cls, engine: str) -> Record:
        return cls(**json.loads((FOLDER / f"{engine}.json").read_text(encoding="utf-8")))

    @classmethod
    def take(cls, wheel: Wheel) -> Record:
        """From the unpacked wheel.  Raises LookupError that lists what the adapter names and the engine does not have."""
        sources = Sources(wheel.sources)
        found = {name: sources.signature(name) for name in sorted({wheel.group, *touched(wheel.adapter, wheel.name)})}
        if missing := [name for name, signature in found.items() if signature is None]:
            raise LookupError(f"{wheel.name} {wheel.version} does not have {', '.join(missing)}")
        return cls(wheel.name, wheel.version, {name: str(signature) for name, signature in found.items()})

    def save(self) -> None:
        (FOLDER / f"{self.engine}.json").write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")


def main() -> None:
    for engine in sys.argv[1:]:
        wheel = WHEELS[engine]
        wheel.fetch()
        record = Record.take(wheel)
        record.save()
        print(f"{engine} {wheel.version}: the adapter touches {len(record.names)} names, all there")


if __name__ == "__main__":
    main()
