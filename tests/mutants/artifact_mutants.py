"""Mutants of how compiled kernels are stored, found again and made by several processes."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

STORE = "tests/runtime/test_artifact_store.py"
KEY = "tests/runtime/test_artifact_keys.py"
TRUST = "tests/runtime/test_artifact_trust.py"
EXPORT = "tests/runtime/test_export.py"
JSON_FILE = "tests/test_json_file.py"
Host = partial(Mutant, archs=())

KEYS = (
    Host(
        "a kernel's name has no digest of the configuration",
        "incomplete key",
        "kernel_name",
        "json.dumps(describe_config(config), sort_keys=True)",
        '""',
        (f"{STORE}::test_every_field_and_the_architecture_are_part_of_the_key", f"{KEY}::test_no_two_configurations_share_a_file"),
    ),
    Host(
        "a configuration's description leaves out its last field",
        "incomplete key",
        "describe_config",
        "{one.name: describe(getattr(config, one.name)) for one in fields(cast(Any, config))}",
        "{one.name: describe(getattr(config, one.name)) for one in fields(cast(Any, config))[:-1]}",
        (f"{STORE}::test_every_field_and_the_architecture_are_part_of_the_key", f"{KEY}::test_no_two_configurations_share_a_file"),
    ),
    Host(
        "the digest of the sources leaves out their contents",
        "incomplete key",
        "source_digest",
        "file.read_bytes()",
        'b""',
        (f"{KEY}::test_any_change_of_a_kernels_sources_is_noticed",),
    ),
    Host(
        "the digest of the sources leaves out the names of files",
        "incomplete key",
        "source_digest",
        "str(file.relative_to(path.parent)).encode()",
        'b""',
        (f"{KEY}::test_any_change_of_a_kernels_sources_is_noticed",),
    ),
    Host(
        "the digest of the sources leaves out a family that lies elsewhere",
        "incomplete key",
        "source_digest",
        "[*(PACKAGE / name for name in SOURCES), *kernel.sources]",
        "[*(PACKAGE / name for name in SOURCES)]",
        (f"{KEY}::test_any_change_of_a_kernels_sources_is_noticed",),
    ),
    Host(
        "the digest of the sources leaves out the layouts",
        "incomplete key",
        "SOURCES",
        '"layouts"',
        '"schedule"',
        ("tests/test_structure.py::test_what_kernels_come_from_is_in_the_digest_of_their_sources",),
    ),
    Host(
        "a kernel of another DSL is taken",
        "incomplete key",
        "ArtifactStore.load",
        "made_by != ours",
        "False",
        (f"{STORE}::test_another_dsl_is_stale_only_where_a_dsl_is_installed",),
    ),
    Host(
        "a kernel is not taken where no DSL is installed",
        "too narrow",
        "ArtifactStore.load",
        "None not in (made_by, ours)",
        "True",
        (f"{STORE}::test_another_dsl_is_stale_only_where_a_dsl_is_installed",),
    ),
    Host(
        "a file may hold another configuration's kernel",
        "missing check",
        "ArtifactStore.load",
        'head.get("config") != json.loads(json.dumps(describe_config(config)))',
        "False",
        (f"{STORE}::test_a_damaged_file_is_rebuilt",),
    ),
    Host(
        "an unknown field is dropped from a configuration that is read",
        "missing check",
        "read_config",
        "given.keys() - known",
        "set()",
        (f"{KEY}::test_an_unknown_configuration_or_field_is_named",),
    ),
)
FILES = (
    Host(
        "older kernels of a configuration stay",
        "missing clean-up",
        "ArtifactStore.save",
        "old.unlink(missing_ok=True)",
        "pass",
        (f"{STORE}::test_other_sources_are_stale_and_replaced",),
    ),
    Host(
        "a file that cannot be stored whole stays in part",
        "missing clean-up",
        "replacing",
        "partial.unlink(missing_ok=True)",
        "pass",
        (f"{KEY}::test_a_full_disk_leaves_nothing_behind",),
    ),
    Host(
        "a kernel is readable by its maker alone",
        "wrong number",
        "replacing",
        "0o644",
        "0o600",
        (f"{TRUST}::test_what_is_stored_is_the_users_whatever_the_umask_is",),
    ),
    Host(
        "PTX and machine code are not compared with their digests",
        "missing check",
        "ArtifactStore._read",
        'head.get("sha256") != {name: hashlib.sha256(parts[name]).hexdigest() for name in (CUBIN, PTX)}',
        "False",
        (f"{TRUST}::test_a_valid_zip_of_other_content",),
    ),
    Host(
        "PTX is not compared with its digest",
        "missing check",
        "ArtifactStore._read",
        'head.get("sha256") != {name: hashlib.sha256(parts[name]).hexdigest() for name in (CUBIN, PTX)}',
        'head.get("sha256", {}).get(CUBIN) != hashlib.sha256(parts[CUBIN]).hexdigest()',
        (f"{TRUST}::test_a_valid_zip_of_other_content",),
    ),
    Host(
        "a part may be inflated to any size",
        "missing check",
        "inflate",
        "info.file_size > MOST_BYTES[name]",
        "False",
        (f"{TRUST}::test_a_valid_zip_of_other_content",),
    ),
    Host(
        "a file of any size is read",
        "missing check",
        "read_all",
        "len(found) > most",
        "False",
        (f"{JSON_FILE}::test_a_file_of_one_byte_too_many",),
    ),
    Host(
        "a pipe is waited for",
        "missing check",
        "open_regular",
        "kind != stat.S_IFREG",
        "kind == stat.S_IFDIR",
        (f"{JSON_FILE}::test_what_would_hang_or_fill_memory_is_refused_at_once",),
    ),
    Host(
        "other problems' configurations are listed too",
        "missing check",
        "ArtifactStore.configs",
        "problem in (None, config.problem)",
        "True",
        (f"{KEY}::test_configurations_of_a_class_and_a_problem",),
    ),
    Host(
        "a configuration is listed for each of its files",
        "missing check",
        "ArtifactStore.configs",
        "config not in seen",
        "True",
        (f"{KEY}::test_configurations_of_a_class_and_a_problem",),
    ),
)
TRUSTED = (
    Host(
        "files of any user are taken",
        "missing check",
        "require_own",
        "found.st_uid not in (ROOT, os.geteuid())",
        "False",
        (f"{TRUST}::test_another_users_file_or_folder",),
    ),
    Host(
        "files of root are not taken",
        "too narrow",
        "require_own",
        "found.st_uid not in (ROOT, os.geteuid())",
        "found.st_uid != os.geteuid()",
        (f"{TRUST}::test_another_users_file_or_folder",),
    ),
    Host(
        "the group may write a kernel",
        "missing check",
        "require_own",
        "stat.S_IWGRP | stat.S_IWOTH",
        "stat.S_IWOTH",
        (f"{TRUST}::test_a_file_that_others_may_write", f"{TRUST}::test_a_folder_that_others_may_write"),
    ),
    Host(
        "anybody may write into the folder of kernels",
        "missing check",
        "read_own",
        "require_own_folder(path.parent)",
        "",
        (f"{TRUST}::test_a_folder_that_others_may_write",),
    ),
    Host(
        "a kernel is stored where it will not be taken",
        "missing check",
        "ArtifactStore.why_unusable",
        "require_own_folder(self.folder)",
        "",
        (f"{TRUST}::test_a_folder_that_others_may_write",),
    ),
    Host(
        "the umask decides who may write a new folder",
        "missing check",
        "make_own_folder",
        "mode=0o755",
        "mode=0o777",
        (f"{TRUST}::test_what_is_stored_is_the_users_whatever_the_umask_is",),
    ),
)
PROCESSES = (
    Host(
        "every process compiles what another one has compiled meanwhile",
        "missing check",
        "ArtifactStore.get",
        "try:\n    return self.load(config)\nexcept ArtifactError:\n    artifact = compile_kernel(config)",
        "artifact = compile_kernel(config)",
        (f"{STORE}::test_of_several_processes_one_compiles",),
    ),
    Host(
        "processes do not wait for each other",
        "missing order",
        "one_process",
        "lock.acquire(timeout=SAY_AFTER)",
        "pass",
        (f"{STORE}::test_of_several_processes_one_compiles",),
    ),
    Host(
        "a process that has waited for long compiles all the same",
        "missing order",
        "one_process",
        "lock.acquire()",
        "pass",
        (f"{TRUST}::test_a_process_that_has_waited_compiles_alone",),
    ),
    Host(
        "a process waits in silence",
        "missing check",
        "one_process",
        "timeout=SAY_AFTER",
        "timeout=-1",
        (f"{TRUST}::test_a_process_that_waits_says_so",),
    ),
    Host(
        "a lock is kept after the kernel is stored",
        "missing clean-up",
        "one_process",
        "lock.release()",
        "pass",
        (f"{KEY}::test_the_lock_is_free_after_a_kernel_and_after_an_error",),
    ),
    Host(
        "what a dead process has not read is written once more",
        "missing clean-up",
        "workers:feed",
        "with suppress(BrokenPipeError): process.stdin.close()",
        "pass",
        (f"{STORE}::test_a_process_that_compiles_no_more_is_an_error",),
    ),
    Host(
        "a file system without locks compiles nothing",
        "too narrow",
        "one_process",
        "(OSError, NotImplementedError)",
        "OSError",
        (f"{STORE}::test_a_file_system_without_locks_keeps_nobody_from_compiling",),
    ),
)
MUTANTS = KEYS + FILES + TRUSTED + PROCESSES
