"""Bad input to pools, lifecycle scripts and traces: the message names what is wrong, its value, and what is legal.

Geometries, launch lines, depth rules, tokens and damaged trace files have such tables beside their own tests.
"""

import copy
import json

import pytest

from depthchart import Geometry
from depthchart.cache import Memory
from depthchart.cases import find_script, load_script, replay
from depthchart.errors import ScriptError
from depthchart.scheduler.lifecycle import Lifecycle
from depthchart.traces import Trace, load_trace, make

SEED = Geometry(64, 8)

POOLS = [
    # id, arguments of Memory -> words
    ("no KV", {"kv_tokens": 0}, ["kv_tokens=0", "positive", "nearest legal: 1"]),
    ("below one tree page", {"kv_tokens": 511}, ["kv_tokens=511", "at least one page", "nearest legal: 512"]),
    ("negative KV", {"kv_tokens": -512}, ["kv_tokens=-512", "positive"]),
    ("fractional KV", {"kv_tokens": 1024.0}, ["kv_tokens=1024.0", "whole number", "nearest legal: 1024"]),
    ("KV as text", {"kv_tokens": "64k"}, ["kv_tokens='64k'", "whole number", "not str"]),
    ("no KV given", {"kv_tokens": None}, ["kv_tokens=None", "whole number"]),
    ("no slots", {"state_slots": 0}, ["state_slots=0", "positive", "nearest legal: 1"]),
    ("fractional slots", {"state_slots": 2.5}, ["state_slots=2.5", "whole number", "nearest legal: 2"]),
    ("a truth value of slots", {"state_slots": True}, ["state_slots=True", "truth value"]),
    ("unknown eviction", {"eviction": "lur"}, ["eviction='lur'", "lru, lfu, fifo, filo, slru, priority"]),
    ("cap 0", {"max_states_per_path": 0}, ["max_states_per_path=0", "at least 1", "None for no cap", "nearest legal: 1"]),
]


@pytest.mark.parametrize("row", POOLS, ids=[row[0] for row in POOLS])
def test_pools(row):
    _, arguments, words = row
    with pytest.raises(ValueError) as caught:
        Memory(SEED, **{"kv_tokens": 4096, "state_slots": 4, **arguments})
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_rule_of_a_lifecycle():
    with pytest.raises(ValueError, match="rule='absolut': no such rule; nearest: 'absolute'"):
        Lifecycle(Memory(SEED, 4096, 4), "absolut")


# --- scripts ----------------------------------------------------------------------------------------------

GOOD = {
    "geometry": {"page_size": 64, "dcp_size": 8},
    "rule": "absolute",
    "pools": {"kv_tokens": 8192, "state_slots": 8},
    "steps": [
        {"op": "request", "id": "a", "tokens": [["doc", 605]]},
        {"op": "extend", "id": "a", "tokens": 605},
        {"op": "finish", "id": "a"},
    ],
}
DROP = object()

SCRIPTS = [
    # id, path into the script, new value -> words
    ("unknown key", ["rules"], "absolute", ["script", "unknown key 'rules'", "nearest: 'rule'"]),
    ("no geometry", ["geometry"], DROP, ["geometry", "must be a JSON object"]),
    ("geometry is a list", ["geometry"], [64, 8], ["geometry", "must be a JSON object", "list"]),
    ("no page", ["geometry", "page_size"], DROP, ["page_size is missing"]),
    ("illegal page", ["geometry", "page_size"], 48, ["page_size=48", "32 or 64"]),
    ("page as text", ["geometry", "page_size"], "64", ["page_size='64'", "not str"]),
    ("unknown flag", ["geometry", "dcp"], 8, ["geometry", "unknown key 'dcp'", "page_size, dcp_size"]),
    ("unknown rule", ["rule"], "absolut", ["rule='absolut'", "nearest: 'absolute'"]),
    ("rule is a list", ["rule"], ["absolute"], ["rule=['absolute']", "no such rule"]),
    ("strict is a word", ["strict"], "yes", ["strict='yes'", "true or false"]),
    ("no pools", ["pools"], DROP, ["pools", "must be a JSON object", "NoneType"]),
    ("no slots", ["pools", "state_slots"], DROP, ["pools.state_slots=None", "positive whole number"]),
    ("no KV", ["pools", "kv_tokens"], 0, ["pools.kv_tokens=0", "positive whole number"]),
    ("KV is a truth value", ["pools", "kv_tokens"], True, ["pools.kv_tokens=True", "positive whole number"]),
    ("unknown pool", ["pools", "slots"], 4, ["pools", "unknown key 'slots'", "state_slots"]),
    ("no steps", ["steps"], DROP, ["steps", "list of operations", "NoneType"]),
    ("steps is an object", ["steps"], {}, ["steps", "list of operations", "dict"]),
    ("expect is a list", ["expect"], [1], ["expect", "must be a JSON object", "list"]),
    ("a step is a word", ["steps", 1], "extend", ["step 1", "must be a JSON object", "str"]),
    (
        "unknown operation",
        ["steps", 1, "op"],
        "prefill",
        ["step 1", "op='prefill'", "request, extend, decode"],
    ),
    ("no operation", ["steps", 1, "op"], DROP, ["step 1", "op=None"]),
    ("operation is a list", ["steps", 1, "op"], ["extend"], ["step 1", "op=['extend']"]),
    ("key of another operation", ["steps", 2, "tokens"], 5, ["step 2 (finish)", "unknown key 'tokens'"]),
    ("no id", ["steps", 2, "id"], DROP, ["step 2 (finish)", "key 'id' is missing"]),
    ("id is a number", ["steps", 0, "id"], 7, ["step 0 (request)", "id=7", "must be str, not int"]),
    ("tokens is a number", ["steps", 0, "tokens"], 605, ["step 0 (request)", "tokens=605", "must be list"]),
    ("tokens is a list", ["steps", 1, "tokens"], [5], ["step 1 (extend)", "tokens=[5]", "must be int"]),
    ("extend by 0", ["steps", 1, "tokens"], 0, ["step 1 (extend)", "tokens=0", "at least 1"]),
    ("extend by true", ["steps", 1, "tokens"], True, ["step 1 (extend)", "tokens=True", "not bool"]),
    ("final is a word", ["steps", 1, "final"], "yes", ["step 1 (extend)", "final='yes'", "must be bool"]),
    ("no tokens", ["steps", 0, "tokens"], [], ["step 0 (request)", "tokens=[]", "at least one"]),
    ("a run is a word", ["steps", 0, "tokens", 0], "doc", ["step 0 (request)", "'doc'", "[segment, length]"]),
    (
        "a run of three",
        ["steps", 0, "tokens", 0],
        ["d", 0, 5],
        ["step 0", "['d', 0, 5]", "[segment, length]"],
    ),
    ("a run of no tokens", ["steps", 0, "tokens", 0], ["doc", 0], ["step 0", "['doc', 0]", "from 1"]),
    ("a run too long", ["steps", 0, "tokens", 0], ["doc", 2**32 + 1], ["step 0", "4294967297", "2**32"]),
]


def changed(path, value):
    script = copy.deepcopy(GOOD)
    at = script
    for key in path[:-1]:
        at = at[key]
    if value is DROP:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return script


def test_the_good_script_is_good():
    assert replay(GOOD)["violations"] == []


@pytest.mark.parametrize("row", SCRIPTS, ids=[row[0] for row in SCRIPTS])
def test_scripts(row):
    _, path, value, words = row
    with pytest.raises(ScriptError) as caught:
        load_script(changed(path, value))
    for word in words:
        assert word in str(caught.value)


RUNS = [
    # id, steps after the request -> words
    ("extend a stranger", [{"op": "extend", "id": "b", "tokens": 1}], ["step 1 (extend)", "id='b'", "running: a"]),
    ("finish twice", [{"op": "finish", "id": "a"}] * 2, ["step 2 (finish)", "id='a'", "running: none"]),
    ("request twice", [GOOD["steps"][0]], ["step 1 (request)", "id='a'", "running already"]),
    ("extend too far", [{"op": "extend", "id": "a", "tokens": 606}], ["step 1 (extend)", "tokens=606", "only 605"]),
    ("decode too early", [{"op": "decode", "id": "a", "tokens": 1}], ["step 1 (decode)", "605 tokens of the prompt"]),
]  # fmt: skip


@pytest.mark.parametrize("row", RUNS, ids=[row[0] for row in RUNS])
def test_scripts_that_ask_the_impossible(row):
    _, steps, words = row
    with pytest.raises(ScriptError) as caught:
        replay({**GOOD, "steps": [GOOD["steps"][0], *steps]})
    for word in words:
        assert word in str(caught.value)


def test_a_pool_below_one_tree_page():
    with pytest.raises(ValueError, match=r"kv_tokens=100: .* nearest legal: 512"):
        replay(changed(["pools", "kv_tokens"], 100))


FILES = [
    # id, content of the file (None: there is none) -> words
    ("no file", None, ["no such file", "sglang-39115-absolute"]),
    ("no JSON", "{", ["script.json", "is not JSON"]),
    ("bytes", b"\xff\xfe\x00", ["script.json", "is not JSON"]),
    ("a list", "[]", ["script.json", "must be a JSON object, got list"]),
    ("nothing in it", "{}", ["geometry", "must be a JSON object"]),
]


@pytest.mark.parametrize("row", FILES, ids=[row[0] for row in FILES])
def test_script_files(row, tmp_path):
    _, content, words = row
    path = tmp_path / "script.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ScriptError) as caught:
        find_script(str(path) if content is not None else "sglang-39115-absolut")
    for word in words:
        assert word in str(caught.value)


def test_a_script_file_is_read_by_its_path(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD))
    assert find_script(str(path)).name == "mine"


# --- traces -----------------------------------------------------------------------------------------------

TRACES = [
    ("unknown trace", lambda: load_trace("agentik"), ["trace='agentik'", "bundled: agentic"]),
    ("unknown format", lambda: load_trace("agentic", format="moncake"), ["format='moncake'", "mooncake"]),
    ("limit 0", lambda: load_trace("agentic", limit=0), ["limit=0", "1 or more"]),
    ("unknown generator", lambda: make("agentik", 0), ["name='agentik'", "agentic"]),
    (
        "unknown parameter",
        lambda: make("agentic", 0, turnz=4),
        ["turnz=4", "no parameter", "agentic"],
    ),
    ("negative head", lambda: Trace("t", ()).head(-1), ["count=-1", "nearest legal value: 0"]),
]


@pytest.mark.parametrize("row", TRACES, ids=[row[0] for row in TRACES])
def test_traces(row):
    _, call, words = row
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
