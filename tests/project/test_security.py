"""docs/security.md: each of its promises has a test."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from osucaffe import log
from osucaffe.cli import flags_by_name, main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
HERE = "project/test_security.py::"
FUZZ = "fuzz/test_fuzz.py::test_regressions_and_mutations"
CHILDREN = "project/test_children.py::test_what_the_package_starts_is_listed"

PROMISES: dict[str, list[str]] = {
    "| net, solver": [CHILDREN, HERE + "test_what_reaches_the_network_is_listed"],
    "| weights, states": [
        "proto/test_hdf5.py::test_links_and_types_that_are_seldom_met",
        "proto/test_hdf5.py::test_data_of_other_files_are_refused",
        FUZZ,
    ],
    "| LMDB": [FUZZ],
    "| HDF5": [
        "proto/test_hdf5.py::test_a_process_that_ends_is_told_and_replaced",
        "proto/test_hdf5.py::test_a_file_that_keeps_the_library_busy",
    ],
    "| images": ["data/databases/test_datum.py::test_images_that_pillow_had_better_not_open"],
    "**Python layers": ["pycaffe/test_python_layer.py::test_the_command_line_can_refuse_modules"],
    "`train`, `test`": [
        HERE + "test_commands_can_refuse_modules",
        "pycaffe/test_python_layer.py::test_the_command_line_can_refuse_modules",
        "project/test_children.py::test_what_lies_in_the_current_folder_is_not_run",
        "cli/test_program.py::test_a_layer_that_leaves_is_named",
        "cli/test_program.py::test_an_exit_code_is_never_that_of_success",
    ],
    "**HDF5Output": [
        "solvers/snapshots/test_claim.py::test_the_lock_is_written_into_no_other_file"
    ],
    "**Temporary": [
        "test_files.py::test_others_cannot_foresee_a_temporary",
        "test_files.py::test_a_link_in_place_of_a_temporary_is_not_followed",
        "test_files.py::test_a_link_in_place_of_a_database_is_not_followed",
        "test_files.py::test_a_new_file_is_none_that_is_there",
        "test_files.py::test_a_process_that_ends_at_once_removes_its_temporaries",
        "test_files.py::test_what_a_killed_process_has_left_goes_away",
        "test_log.py::test_a_log_follows_no_link",
    ],
    "**Names in files": [
        "cli/test_output.py::test_names_steer_no_terminal",
        "cli/test_output.py::test_a_record_of_the_log_is_one_line",
        "cli/test_output.py::test_cells_begin_no_formula",
    ],
    "**A snapshot prefix": [
        "solvers/snapshots/test_claim.py::test_another_process_is_told_until_the_first_is_gone"
    ],
    "**Compiled kernels": [
        "backends/cuda/runtime/test_cache.py::test_only_what_no_other_user_can_have_written_is_found",
        "backends/cuda/runtime/test_cache.py::test_a_folder_that_others_write_to_has_one_for_each",
    ],
    "**Sizes": [
        "layers/test_errors.py::test_message_names_layer_and_field",
        "data/pictures/test_image.py::test_a_few_bytes_that_ask_for_many_pixels",
        FUZZ,
        "test_files.py::test_what_has_no_end_is_not_read_for_ever",
    ],
    "**No file": [
        "data/sets/test_pickled.py::test_nothing_that_a_pickle_names_is_run",
        HERE + "test_a_run_listens_nowhere_and_unpickles_nothing",
    ],
    "- A run of": [HERE + "test_a_run_listens_nowhere_and_unpickles_nothing"],
    "- `data mnist`": [
        HERE + "test_what_reaches_the_network_is_listed",
        "apps/photographs/test_pretrained.py::test_wrong_content_is_removed",
        "apps/photographs/test_pretrained.py::test_a_wheel_of_an_index",
        "apps/photographs/test_pretrained.py::test_pytorchs_tensors_are_read_as_data",
    ],
    "- `--ranks N`": ["cli/launch/test_ranks.py::test_ranks_of_one_machine_listen_on_the_loopback"],
    "- Between hosts": [
        "comm/job/test_links.py::test_one_rank_of_each_host_watches_the_others",
        "comm/job/test_handshake.py::test_a_stranger_gets_no_connection",
    ],
    "- A client that": [
        "comm/job/test_handshake.py::test_silent_callers_hold_up_nobody",
        "comm/job/test_handshake.py::test_all_have_one_deadline",
        "comm/job/test_handshake.py::test_another_user_is_not_listened_to",
    ],
    "- `--channel`": [
        "comm/job/test_handshake.py::test_a_stranger_gets_no_connection",
        "rpc/test_channels.py::test_a_stranger_cannot_use_grpc",
        "rpc/test_channels.py::test_an_interface_without_an_address_is_told",
    ],
    "- UCX knows": ["rpc/test_ucx.py::test_who_is_reached_by_ucx"],
}
"""How a paragraph, row or item of the page begins, and the tests that hold it."""
ADVICE = ("Images are", "- Jobs over")
"""Those that promise nothing."""
NETWORK = {
    "rpc/adaptive.py": {"socket"},
    "rpc/grpc_stream.py": {"grpc"},
    "rpc/peer.py": {"socket"},
    "comm/job/handshake.py": {"asyncio", "socket"},
    "comm/job/links.py": {"socket"},
    "data/sets/mnist.py": {"http", "urllib"},  # `data mnist`, which downloads it
    "apps/photographs/pretrained.py": {"http", "urllib"},  # `models get`, and what begins with it
}
"""What the package's files import that reaches the network, besides MPI, NCCL and UCX."""


def statements() -> list[str]:
    """The paragraphs, rows and items of the two sections that promise something."""
    body = PAGE[PAGE.index("## What a file may do") : PAGE.index("## How this is kept")]
    body = re.sub(r"```.*?```", "", body, flags=re.DOTALL)
    parts = re.split(r"\n\n|\n(?=\||- )", body)
    return [part.strip() for part in parts if not re.match(r"\s*$|##|\| file|\|-|That is", part)]


def test_each_promise_has_a_test() -> None:
    known = [*PROMISES, *ADVICE]
    untested = [
        part for part in statements() if sum(part.startswith(start) for start in known) != 1
    ]
    assert untested == []
    gone = [start for start in known if not any(part.startswith(start) for part in statements())]
    assert gone == []


@pytest.mark.parametrize("start", PROMISES)
def test_the_tests_exist(start: str) -> None:
    for test in PROMISES[start]:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), test


def test_what_reaches_the_network_is_listed() -> None:
    names = "asyncio|ftplib|grpc|http|requests|socket|socketserver|urllib"
    imports = re.compile(rf"^ *(?:import|from) ({names})\b", re.MULTILINE)
    package = ROOT / "osucaffe"
    found = {
        str(path.relative_to(package)): set(imports.findall(path.read_text()))
        for path in package.rglob("*.py")
    }
    assert {file: modules for file, modules in found.items() if modules} == NETWORK


def test_commands_can_refuse_modules() -> None:
    [text] = [part for part in statements() if part.startswith("`train`, `test`")]
    commands = re.findall(r"`(\w+)`", text[: text.index("take the")])
    assert len(commands) == 8
    for command in commands:
        assert "--no_python_layers" in flags_by_name(command), command


SOLVER = """base_lr: 0.01 lr_policy: "fixed" display: 1 snapshot: 1 net_param {
  layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 }
    data_filler { type: "gaussian" } } }
  layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {
    num_output: 2 } }
  layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "loss" } }
"""


def test_a_run_listens_nowhere_and_unpickles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "socket.bind", "socket.connect", "pickle.find_class"
    told, watching = [], [True]

    def watch(event: str, arguments: object) -> None:
        if watching and event in refused:
            told.append((event, arguments))

    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    sys.addaudithook(watch)  # which stays
    try:
        assert main(["train", "--solver", "solver.prototxt", "--max_iter", "2"]) == 0
        assert (
            main(["train", "--solver", "solver.prototxt", "--max_iter", "3", "--snapshot=auto"])
            == 0
        )
    finally:
        watching.clear()
        log.stop()
    assert told == []
    assert (tmp_path / "solver_iter_3.solverstate").exists()
