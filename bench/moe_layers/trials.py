"""What there is to time at a point: each way made, run once, compared, and captured, before any is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from megamoe_dsl.bench.timing import graph_of
from moe_layers.other_way import Launch, OtherWay


class Trials:
    """launches  by name, those that run
    errors    relative, of those that give the layer's result
    refused   the others' reasons, their first lines: the rest is timed without them
    """

    def __init__(self, error: Callable[[torch.Tensor], float]) -> None:
        self._error = error
        self.launches: dict[str, Launch] = {}
        self.errors: dict[str, float] = {}
        self.refused: dict[str, str] = {}

    def own(self, name: str, launch: Launch, whole: bool = False) -> None:
        """Ours.  Whatever it raises is raised."""
        result = launch()
        if whole:
            self.errors[name] = self._error(result)
        self.launches[name] = launch

    def others(self, name: str, ways: Callable[[], Mapping[str, OtherWay]]) -> None:
        """Another library's, of this name if it cannot even be asked for its ways.  Libraries and their compilers raise errors of many
        kinds."""
        try:
            found = ways()
        except Exception as error:
            self.refused[name] = first_line(error)
            return
        for one, way in found.items():
            try:
                self._try(one, way)
            except Exception as error:
                self.refused[one] = first_line(error)
        torch.cuda.empty_cache()  # of what the captured graphs had

    def _try(self, name: str, way: OtherWay) -> None:
        launch = way.make()
        result = launch()
        error = self._error(result) if way.whole else None
        graph_of(launch)  # as it is timed
        if error is not None:
            self.errors[name] = error
        self.launches[name] = launch


def first_line(error: Exception) -> str:
    """Of what it says."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
