"""``depthchart check`` and the command line around it: output, exit codes, what stands after ``--``."""

import json
import subprocess
import sys

import pytest

from depthchart.cli import main

SEED = ["check", "--page-size", "64", "--dcp-size", "8", "--chunk-width", "64"]
SGL = ["--", "python", "-m", "sglang.launch_server", "--page-size", "64", "--dcp-size", "8"]

CODES = [
    ("seed", SEED, 0),
    ("seed, prefix_relative", [*SEED, "--rule", "prefix_relative"], 1),
    ("sglang line", ["check", *SGL], 0),
    ("sglang line, prefix_relative", ["check", "--rule", "prefix_relative", *SGL], 1),
    ("one quoted string", ["check", "--", "vllm serve M --block-size 528"], 0),
    (
        "budget below block",
        ["check", "--", "vllm serve M --block-size 2096 --max-num-batched-tokens 2048"],
        1,
    ),
    ("illegal geometry", ["check", "--page-size", "48"], 1),
    ("illegal in a line", ["check", "--", "sglang serve --page-size 48"], 1),
    ("unknown program", ["check", "--", "foo"], 2),
    ("unknown rule", [*SEED, "--rule", "absolut"], 2),
    ("no page", ["check"], 2),
    ("empty line", ["check", "--"], 2),
]


@pytest.mark.parametrize("row", CODES, ids=[row[0] for row in CODES])
def test_exit_codes(row, capsys):
    _, argv, code = row
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert bool(out) != err.startswith("depthchart: error: ")


@pytest.mark.parametrize(
    "argv", [[], ["chek"], ["check", "--page-size", "x"], ["check", "--page", "64", "extra"]], ids=str
)
def test_usage_errors_are_argparse_exits(argv):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


def test_text_names_grids_rule_and_minimum(capsys):
    main(["check", *SGL])
    out = capsys.readouterr().out
    for words in (
        "checkpoint_grid       ",
        "minimum reusable prefix: 512 tokens",
        "rule: dcp_gated",
        "--dcp-size",
    ):
        assert words in out


def test_json_of_a_line(capsys):
    main(["check", "--json", *SGL])
    answer = json.loads(capsys.readouterr().out)
    grids = {"tree_page": 512, "cache_chunk": 64, "checkpoint_grid": 512, "track_grid": 512}
    assert answer["grids"] == grids
    assert answer["geometry"]["page_size"] == 64
    assert answer["engine"]["name"] == "sglang"
    assert (answer["ok"], answer["error"], answer["minimum_reusable_prefix"]) == (True, None, 512)


def test_json_of_an_illegal_geometry(capsys):
    assert main(["check", "--json", "--page-size", "48"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert "32 or 64" in answer["error"]


def test_options_before_the_dashes_override_the_line(capsys):
    main(["check", "--json", "--chunk-width", "256", *SGL])
    assert json.loads(capsys.readouterr().out)["grids"]["cache_chunk"] == 256


def test_module_and_closed_pipe(tmp_path):
    run = [sys.executable, "-m", "depthchart"]
    version = subprocess.run([*run, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("depthchart 0.")
    process = subprocess.Popen([*run, *SEED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    assert process.wait() == 141
