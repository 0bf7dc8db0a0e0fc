"""Every reader on small files of our own in the public formats; expected values by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from depthchart.traces import load_trace, stream_trace
from depthchart.traces.formats import detect
from depthchart.traces.lines import DamageLog
from depthchart.traces.trace import canonical, common_prefix

SAMPLES = Path(__file__).parent / "samples"

DETECTED = [
    ("mooncake.jsonl", "mooncake", 4, 4860, 36),
    ("mooncake_sessions.jsonl", "mooncake", 2, 1112, 8),
    ("bailian.jsonl", "bailian", 4, 152, 22),
    ("coding_agent.jsonl", "coding-agent", 5, 910, 19),
    ("coding_agent_pretty.json", "coding-agent", 4, 718, 18),
    ("ragpulse", "ragpulse", 3, 1882, 23),
    ("ragpulse/0_trace.jsonl", "ragpulse", 3, 1882, 23),
    ("token_ids.jsonl", "token-ids", 4, 37, 8),
    ("azure.csv", "azure", 3, 8098, 45),
    ("azure_2024.csv", "azure", 2, 4561, 11),
    ("burstgpt.csv", "burstgpt", 2, 1559, 248),
    ("burstgpt_sessions.csv", "burstgpt", 2, 1006, 451),
    ("neutral.csv", "csv", 2, 150, 10),
]


@pytest.mark.parametrize(
    ("name", "form", "count", "prompt", "output"), DETECTED, ids=[r[0] for r in DETECTED]
)
def test_format_is_found_and_totals_are_the_files(name, form, count, prompt, output):
    assert detect(SAMPLES / name).name == form
    log = DamageLog(strict=True)
    trace = load_trace(SAMPLES / name, log=log)
    assert (len(trace), trace.prompt_tokens, trace.output_tokens) == (count, prompt, output)
    assert len(list(stream_trace(SAMPLES / name))) == count


def read(name, **options):
    return list(stream_trace(SAMPLES / name, log=DamageLog(strict=True), **options))


def shared(requests, a, b):
    return common_prefix(requests[a].prompt, requests[b].prompt)


def test_mooncake_blocks_are_equal_where_their_ids_are():
    found = read("mooncake.jsonl")
    assert [request.arrival_s for request in found] == [0.0, 3.0, 3.0, 6.5]
    assert shared(found, 0, 1) == 1024  # blocks 0 and 1
    assert shared(found, 0, 2) == 512  # block 0
    assert found[0].prompt == found[3].prompt  # the partial block too, by its id and its length
    # Sessions: who continues whose two or more full blocks; block 0 alone tells nothing.
    assert found[0].session == found[1].session == found[3].session != found[2].session
    assert {request.session for request in read("mooncake.jsonl", infer_sessions=False)} == {None}


def test_a_partial_mooncake_block_is_no_other_length(tmp_path):
    file = tmp_path / "m.jsonl"
    row = '{{"timestamp": 0, "input_length": {}, "output_length": 1, "hash_ids": [0, 1]}}\n'
    file.write_text(row.format(700) + row.format(1024))
    found = list(stream_trace(file))
    assert shared(found, 0, 1) == 512


def test_mooncake_dialect_with_sessions_and_delays():
    first, second = read("mooncake_sessions.jsonl")
    assert (first.request_id, first.arrival_s, first.session, first.after) == ("a1", 0.5, "a", None)
    assert (second.request_id, second.after, second.think_s) == ("a2", "a1", 0.25)


def test_bailian_ids_name_a_block_wherever_it_stands():
    found = read("bailian.jsonl")
    assert shared(found, 0, 2) == 32  # the partial third block changed its id
    assert found[1].prompt == (found[1].prompt[0],) * 2  # block 0 twice
    assert shared(found, 0, 1) == 16
    # Id 2 was 8 tokens long in the first prompt and is 16 here: not the same tokens.
    assert found[3].prompt[0] not in found[0].prompt
    assert [request.session for request in found] == ["chat0", "chat1", "chat0", "chat0"]
    assert [request.after for request in found] == [None, None, "c0", "c2"]


def test_coding_agent_ids_are_local_and_sub_agents_run_beside():
    found = read("coding_agent.jsonl")
    one, helper, helper_2, three, other = found
    assert [request.arrival_s for request in found] == [0.0, 5.0, 7.0, 9.5, 1.0]
    assert common_prefix(one.prompt, three.prompt) == 192  # full blocks; the 8 tokens after them are new
    assert common_prefix(helper.prompt, helper_2.prompt) == 64
    assert common_prefix(one.prompt, other.prompt) == 0  # block 1 of another session is another block
    assert [request.extra_key for request in found] == ["big", "small", "small", "big", "big"]
    assert (helper.after, helper_2.after, three.after) == (one.request_id, helper.request_id, one.request_id)
    assert (helper_2.think_s, three.think_s) == (1.0, 1.5)
    assert helper_2.output == ()
    assert {request.session for request in found[:4]} == {"one"}


def test_coding_agent_options():
    one, *_, other = read("coding_agent.jsonl", share_head=True, key_by_model=False, session_every_s=10.0)
    assert common_prefix(one.prompt, other.prompt) == 128  # tools and system prompt, 64 + 64
    assert other.extra_key is None
    assert other.arrival_s == 11.0
    assert len(read("coding_agent.jsonl", sub_agents=False)) == 3


def test_coding_agent_folder_of_session_files(tmp_path):
    text = (SAMPLES / "coding_agent_pretty.json").read_text()
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "b.json").write_text(text.replace('"id": "one"', '"id": "two"'))
    assert load_trace(tmp_path).sessions == 2


def test_absolute_times_of_later_sub_agents(tmp_path):
    text = (SAMPLES / "coding_agent.jsonl").read_text().splitlines()[0]
    later = tmp_path / "s.jsonl"
    own = '"type": "s", "model": "small"'
    later.write_text(text.replace(f'{{"t": 0.0, {own}', f'{{"t": 5.5, {own}'))
    assert [request.arrival_s for request in stream_trace(later)][1] == 5.5


def test_ragpulse_parts_lie_in_order_and_end_off_every_page():
    found = read("ragpulse")
    # 512 + 9 system, 20 + 79 passages, 3 history, 5 question, 638 - 628 = 10 template
    assert [run[2] for run in found[0].prompt] == [628, 10]
    assert shared(found, 0, 1) == 521  # then passage 21 stands where 20 stood
    assert shared(found, 0, 2) == 512
    assert [request.arrival_s for request in found] == [82.0, 90.0, 85.0]
    assert [request.session for request in load_trace(SAMPLES / "ragpulse")] == ["x", "x", "y"]


def test_token_ids_are_kept_literally():
    found = read("token_ids.jsonl")
    assert found[0].prompt == ((0, 5, 3), (0, 900, 1))
    assert found[0].output == ((0, 3, 1), (0, 3, 1))
    assert shared(found, 0, 1) == 2
    assert (found[2].arrival_s, found[3].after, found[3].think_s) == (3.0, found[2].request_id, 0.5)


def test_azure_times_have_seven_digits_and_offsets():
    assert [request.arrival_s for request in read("azure.csv")] == [0.0, 0.052, 60.0000001]
    assert [request.arrival_s for request in read("azure_2024.csv")] == [0.0, 0.007405]


def test_burstgpt_failures_are_counted_not_read():
    trace = load_trace(SAMPLES / "burstgpt.csv")
    assert trace.notes == ("1 lines left out: 0 response tokens, a failed request",)
    assert [request.arrival_s for request in trace] == [0.0, 40.0]
    assert len(read("burstgpt.csv", keep_failures=True)) == 3
    first, second = read("burstgpt_sessions.csv")
    assert (first.session, second.session, second.arrival_s) == ("aa", None, 2.5)


def spell(runs):
    return bytes(start + step for _, start, length in runs for step in range(length)).decode()


def test_chat_logs_share_the_prefix_of_their_messages():
    first, second, third = read("chat.jsonl")
    head = "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\n"
    assert spell(first.prompt) == head
    assert spell(first.output) == "Hello\n"
    assert spell(second.prompt) == head + "Hello\n<|user|>\nNée?\n<|assistant|>\n"
    assert common_prefix(second.prompt, canonical(first.prompt + first.output)) == len(head + "Hello\n")
    assert second.output_tokens == 6
    assert spell(third.prompt) == '<|tools|>\n[{"name": "f"}]\n<|user|>\nHi\n<|assistant|>\n'
    assert spell(third.output) == "Yes\n"
    assert [request.arrival_s for request in (first, second, third)] == [0.0, 4.5, 10.0]
    assert third.request_id == "batch-1"


def test_any_tokenizer_callable_serves():
    def two_words(text):
        return [len(word) for word in text.split()]

    first, *_ = read("chat.jsonl", tokenizer=two_words)
    assert first.prompt_tokens == 6  # <|system|> Be brief. <|user|> Hi <|assistant|>


def test_neutral_table_without_identities_shares_nothing():
    first, second = read("neutral.csv")
    assert (first.request_id, first.session, first.priority, first.prompt_tokens) == ("x", "s", 2, 100)
    assert (second.session, second.output) == (None, ())
    assert shared([first, second], 0, 1) == 0
