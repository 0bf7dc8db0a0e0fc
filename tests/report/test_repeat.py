"""What a report tells to repeat a run does repeat it: the Python lines and the command are carried out."""

import shlex

import pytest

from depthchart import Geometry, Run, load_trace
from depthchart.cli import main
from depthchart.datafiles import data_path
from depthchart.presets import preset
from depthchart.report.repeat import repeat_call, repeat_command, trace_call
from depthchart.simulate import simulate
from depthchart.traces import Trace

WIDE = Geometry(64, dcp_size=8)


def a_file():
    return str(next(data_path("traces").glob("agentic*")))


def plain(tmp_path):
    return simulate(load_trace("agentic", limit=12), WIDE, "prefix_relative", kv_tokens=65_536, state_slots=24, strict=False)


def from_a_file(tmp_path):
    return simulate(load_trace(a_file()).head(9), Geometry(16), policy="lpm", kv_tokens=32_768, state_slots=16)


def an_engine(tmp_path):
    settings = preset("sglang").apply(WIDE, 65_536, 24).settings
    return simulate(load_trace("agentic", limit=12), WIDE, **settings)


def a_joint_pool(tmp_path):
    """Halves that no round number gives, on blocks smaller and larger than a state."""
    settings = preset("vllm-all").apply(WIDE, 65_536, 24).settings
    return simulate(load_trace("agentic", limit=12), WIDE, **settings)


def a_joint_pool_of_large_blocks(tmp_path):
    geometry = Geometry(528, chunk_width=16)
    settings = preset("vllm-all").apply(geometry, 65_536, 25).settings
    return simulate(load_trace("agentic", limit=12), geometry, **settings)


def a_rule_of_its_own(tmp_path):
    geometry = Geometry(528, chunk_width=16)
    settings = preset("vllm-junction").apply(geometry, 65_536, 24).settings
    return simulate(load_trace("agentic", limit=12), geometry, policy="lpm", **settings)


def a_name_that_is_nearly_a_rules(tmp_path):
    """vllm-align decodes on the block, the registered rule ``vllm_align`` on the track grid."""
    geometry = Geometry(64, chunk_width=64, track_interval=256)
    return simulate(load_trace("agentic", limit=8), geometry, **preset("vllm-align").apply(geometry, 65_536, 24).settings)


def our_own(tmp_path):
    return simulate(load_trace("agentic", limit=12), WIDE, **preset("depthchart").apply(WIDE, 65_536, 24).settings)


ENGINES = [an_engine, a_joint_pool, a_joint_pool_of_large_blocks, a_rule_of_its_own, a_name_that_is_nearly_a_rules, our_own]


@pytest.mark.parametrize("made", [plain, from_a_file, *ENGINES])
def test_the_command_repeats_the_run(made, tmp_path, capsys):
    run = made(tmp_path)
    program, verb, *words = shlex.split(repeat_command(run))
    assert (program, verb) == ("depthchart", "simulate")
    assert words[0] == run.loaded["path"]
    main([verb, *words, "--out", str(tmp_path / "again")])
    again = Run.load(tmp_path / "again")
    assert again.log.entries == run.log.entries
    assert again.loaded == run.loaded
    assert again.settings == run.settings


@pytest.mark.parametrize("made", [plain, from_a_file, *ENGINES])
def test_the_lines_repeat_the_run(made, tmp_path):
    run, given = made(tmp_path), {}
    exec("\n".join(repeat_call(run)), given)
    assert given["run"].log.entries == run.log.entries


def test_an_engine_is_named_by_its_preset(tmp_path):
    assert "--preset sglang " in repeat_command(an_engine(tmp_path))
    assert "--rule prefix_relative " in repeat_command(plain(tmp_path))


def test_a_joint_pool_is_told_by_its_halves(tmp_path, capsys):
    assert "--preset vllm-all --divided " in repeat_command(a_joint_pool(tmp_path))
    for words in ([], ["--preset", "sglang"]):
        assert main(["simulate", "agentic", "--limit", "3", "--divided", *words]) == 2
        assert "nearest legal: --preset vllm-all" in capsys.readouterr().err


def test_the_readers_options_are_told_and_the_command_admits_that_it_has_none():
    loaded = {"path": "a b.jsonl", "format": "mooncake", "seed": 3}
    assert trace_call(loaded, "a", 5) == "load_trace('a b.jsonl', format='mooncake', seed=3).head(5)"


def test_a_trace_made_in_python_is_not_given_a_path():
    loaded = load_trace("agentic", limit=3)
    run = simulate(Trace("mine", loaded.requests), WIDE, kv_tokens=65_536, state_slots=24)
    assert "no command: the trace 'mine' was not read from a file" in repeat_command(run)
    assert any("was made in Python" in line for line in repeat_call(run))
