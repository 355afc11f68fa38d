"""Mutants of how a checkpoint is converted into a recipe's format."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

CONVERSION = "tests/checkpoints/test_conversion.py"
COMMAND = "tests/checkpoints/test_weights_command.py"
Host = partial(Mutant, archs=())

CONVERSIONS = (
    Host(
        "the index has the layers of the last run only",
        "lost data",
        "_enter",
        "{**kept, **{name: part.name for part in parts for name in part.tensor_names()}}",
        "{name: part.name for part in parts for name in part.tensor_names()}",
        (f"{CONVERSION}::test_layers_one_after_another",),
    ),
    Host(
        "a layer's older entries are kept instead of its new ones",
        "wrong order",
        "_enter",
        "{**kept, **{name: part.name for part in parts for name in part.tensor_names()}}",
        "{**{name: part.name for part in parts for name in part.tensor_names()}, **read_index(folder / INDEX_NAME).weight_map} "
        "if kept else {name: part.name for part in parts for name in part.tensor_names()}",
        (f"{CONVERSION}::test_layers_one_after_another",),
    ),
    Host(
        "two runs write the index at the same time",
        "missing order",
        "_alone_in",
        "fcntl.flock(handle, fcntl.LOCK_EX)",
        "pass",
        (f"{CONVERSION}::test_an_index_is_not_read_while_another_run_writes_it",),
    ),
    Host(
        "a checkpoint is converted into its own folder",
        "missing check",
        "_check_place",
        "folder.exists() and folder.samefile(home)",
        "False",
        (f"{CONVERSION}::test_a_checkpoint_is_not_converted_into_itself",),
    ),
    Host(
        "another checkpoint's index is replaced",
        "missing check",
        "_kept_entries",
        "not OWN_FILE.fullmatch(file)",
        "False",
        (f"{CONVERSION}::test_another_checkpoints_index_is_not_replaced",),
    ),
    Host(
        "one index has layers of two recipes",
        "missing check",
        "_kept_entries",
        "kept and before != recipe",
        "False",
        (f"{CONVERSION}::test_one_recipe_a_folder",),
    ),
    Host(
        "entries of layer 3 go with those of layer 30",
        "lost data",
        "_kept_entries",
        'OWN_STEM.format(layer=layer, expert="")',
        'OWN_STEM.format(layer=layer, expert="").removesuffix(".experts.")',
        (f"{CONVERSION}::test_layers_whose_numbers_begin_alike",),
    ),
    Host(
        "the last expert of a layer is left out",
        "off by one",
        "convert_checkpoint",
        "min(first + step, count)",
        "min(first + step, count - 1)",
        (f"{CONVERSION}::test_layers_one_after_another",),
    ),
    Host(
        "a file of another recipe is taken for this one's",
        "incomplete key",
        "ExpertFile.metadata",
        "self.problem.recipe",
        '""',
        (f"{COMMAND}::test_convert_goes_on_where_it_was",),
    ),
    Host(
        "a file of another source is taken for this one's",
        "incomplete key",
        "ExpertFile.metadata",
        "str(self.experts.checkpoint.path.resolve())",
        '""',
        (f"{CONVERSION}::test_a_conversion_leaves_what_it_would_alone",),
    ),
    Host(
        "a file that is there is made again in every run",
        "missing check",
        "_write_part",
        "place.is_file()",
        "False",
        (f"{COMMAND}::test_convert_goes_on_where_it_was",),
    ),
    Host(
        "a file appears before it is whole",
        "missing order",
        "replacing",
        "partial = Path(name)",
        "partial = path",
        (f"{CONVERSION}::test_layers_one_after_another",),
    ),
    Host(
        "what was half written stays",
        "missing clean-up",
        "replacing",
        "partial.unlink(missing_ok=True)",
        "pass",
        (f"{CONVERSION}::test_a_full_disk",),
    ),
    Host(
        "a full disk is a traceback",
        "missing check",
        "_write_part",
        'raise CheckpointError(f"cannot be written ({error})", file=place) from None',
        "raise",
        (f"{CONVERSION}::test_a_full_disk",),
    ),
    Host(
        "a range of layers ends one early",
        "off by one",
        "parse_layers",
        "int(read[2] or read[1]) + 1",
        "int(read[2] or int(read[1]) + 1)",
        (f"{COMMAND}::test_layers_of_a_range",),
    ),
    Host(
        "a layer that is named twice has its files twice",
        "wrong number",
        "convert_checkpoint",
        "dict.fromkeys(find_layers(checkpoint) if layers is None else layers)",
        "find_layers(checkpoint) if layers is None else layers",
        (f"{CONVERSION}::test_layers_one_after_another",),
    ),
    Host(
        "a source is what its path says",
        "incomplete key",
        "ExpertFile.metadata",
        "self.experts.checkpoint.path.resolve()",
        "self.experts.checkpoint.path",
        (f"{CONVERSION}::test_a_conversion_leaves_what_it_would_alone",),
    ),
)
