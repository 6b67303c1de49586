"""Bad traces: each is refused with one line that says where, what, and what would be right."""

import json

import pytest

from workloads.errors import InputError, TraceFormatError
from workloads.readers import detect_format, read_trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
T0, T1 = "2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"
GOOD = f"{HEAD}{T0},374,44\n"
ROW = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
CHAT = {
    "chat_id": 1,
    "parent_chat_id": -1,
    "timestamp": 0,
    "input_length": 8,
    "output_length": 5,
    "hash_ids": [1],
}
RUN = {
    "num_prompts": 1,
    "input_lens": [10],
    "output_lens": [4],
    "start_times": [100.5],
    "errors": [""],
    "itls": [[]],
}
BURST = "Timestamp,Request tokens,Response tokens,Total tokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def mooncake(**changes):
    return json.dumps(ROW) + "\n" + json.dumps({**ROW, **changes}) + "\n"


def without(row, key):
    return json.dumps({name: value for name, value in row.items() if name != key})


def guide(**changes):
    record = {"info": {"timings": {"targeted_start": 1.0}}, "prompt_tokens": 1, "output_tokens": 1} | changes
    return json.dumps({"benchmarks": [{"requests": {"successful": [record]}}]})


CASES = {
    # name: (content, what the message is after the path)
    "empty file": (b"", ": the file is empty; a trace has at least one request"),
    "blank file": (b" \n\n", ": the file is empty; a trace has at least one request"),
    "binary junk": (b"abc\ndef\0\x01", ":2: binary data; a trace is UTF-8 text"),
    "latin-1 text": (GOOD.encode() + b"\xe4", ":3: not UTF-8 text; a trace is UTF-8 text"),
    "gzip": (b"\x1f\x8b\x08\x00abc", ": is compressed with gzip; unpack it first"),
    "unknown columns": (
        "a,b\n1,2\n",
        ':1: unknown format: the first line is "a,b"; known formats: parquet, azure',
    ),
    "unknown json": ('{"a": 1}\n', ":1: unknown format: a JSON object with the keys a; known formats"),
    "a summary": (
        '{"aiperf_version": "0.13"}',
        ": a summary without requests; give profile_export.jsonl instead",
    ),
    "empty list": ("[]", ": an empty list; a trace has at least one request"),
    "damaged parquet": (b"PAR1garbage", ": damaged Parquet: "),
    # Azure
    "missing column": (
        "TIMESTAMP,ContextTokens\n" + T0 + ",3\n",
        ":1: no column 'GeneratedTokens'; an Azure trace needs TIMESTAMP, ContextTokens, GeneratedTokens",
    ),
    "doubled column": (HEAD[:-1] + ",TIMESTAMP\n", ":1: more than one column 'TIMESTAMP'"),
    "header only": (HEAD, ": a header without rows; a trace has at least one request"),
    "short row": (GOOD + T1 + ",5\n", ":3: 2 fields where the header has 3"),
    "bad stamp": (
        GOOD + "yesterday,5,5\n",
        ':3: TIMESTAMP is "yesterday"; a stamp as 2023-11-16 18:15:46.6805900',
    ),
    "month 13": (GOOD + "2023-13-16 18:15:46,5,5\n", ':3: TIMESTAMP is "2023-13-16 18:15:46"; a stamp as'),
    "second 61": (GOOD + "2023-11-16 18:15:61,5,5\n", ':3: TIMESTAMP is "2023-11-16 18:15:61"; a stamp as'),
    "offset in some": (
        GOOD + T1 + "+00:00,5,5\n",
        ": some TIMESTAMPs have a UTC offset and some have none",
    ),
    "back in time": (
        HEAD + f"{T1},5,5\n{T0},6,6\n",
        ":3: TIMESTAMP goes back by 4.314579 s; rows must be sorted by time",
    ),
    "float tokens": (
        GOOD + T1 + ",5.0,5\n",
        ':3: ContextTokens is "5.0"; a whole number of tokens is expected',
    ),
    "negative tokens": (GOOD + T1 + ",5,-5\n", ':3: GeneratedTokens is "-5"; a whole number of tokens'),
    "nan tokens": (GOOD + T1 + ",nan,5\n", ':3: ContextTokens is "nan"; a whole number of tokens'),
    "empty cell": (GOOD + T1 + ",,5\n", ':3: ContextTokens is ""; a whole number of tokens'),
    "huge tokens": (GOOD + T1 + f",{10**30},5\n", f':3: ContextTokens is "{10**30}"; a whole number'),
    "foreign digits": (GOOD + T1 + ",\u0663,5\n", ":3: ContextTokens is "),
    "zero input": (GOOD + T1 + ",0,5\n", ":3: ContextTokens is 0; a request has at least 1 input token"),
    "zero output": (
        GOOD + T1 + ",5,0\n",
        ":3: a failed request (GeneratedTokens is 0), the first of 1 in 2; --drop-failed (drop_failed: true) keeps",
    ),
    "open quote": (GOOD + '"' + T1 + ",5,5\n", ":3: "),
    # Mooncake
    "truncated line": (
        json.dumps(ROW) + "\n" + json.dumps(ROW)[:40],
        ":2: not valid JSON (cut off?): ",
    ),
    "not an object": (json.dumps(ROW) + "\n[1]\n", ":2: [1] where one JSON object is expected"),
    "text for lengths": (
        without(ROW, "input_length")[:-1] + ', "text_input": "hello"}\n',
        ":1: 'text_input' instead of input_length: lengths need its tokenizer; give token counts",
    ),
    "no lengths": (
        '{"timestamp": 0, "hash_ids": [1]}\n',
        ":1: no input_length; a Mooncake row has timestamp",
    ),
    "delay": (
        without({**ROW, "delay": 5}, "timestamp") + "\n",
        ":1: 'delay' instead of timestamp: it counts from an answer; give timestamps in ms",
    ),
    "stamp beyond the clock": (
        f"{HEAD}{T0},374,44\n9999-12-31 23:59:59,374,44\n",
        ':3: TIMESTAMP is "9999-12-31 23:59:59"; a year from 1970 to 2200 is expected',
    ),
    "stamp before the clock": (
        f"{HEAD}0001-01-01 00:00:00+14:00,374,44\n",
        ':2: TIMESTAMP is "0001-01-01 00:00:00+14:00"; a year from 1970 to 2200 is expected',
    ),
    "float length": (
        mooncake(output_length=5.0),
        ":2: output_length is 5.0; a whole number of tokens is expected",
    ),
    "true length": (mooncake(output_length=True), ":2: output_length is true; a whole number of tokens"),
    "no output": (
        json.dumps(ROW) + "\n" + without(ROW, "output_length") + "\n",
        ":2: output_length is missing; a whole number of tokens is expected, as 128",
    ),
    "nan time": (
        mooncake(timestamp=float("nan")),
        ":2: timestamp is nan; non-negative milliseconds are expected",
    ),
    "negative time": (mooncake(timestamp=-1), ":2: timestamp is -1; non-negative milliseconds are expected"),
    "text time": (mooncake(timestamp="1"), ':2: timestamp is "1"; non-negative milliseconds are expected'),
    "early time": (
        json.dumps({**ROW, "timestamp": 2}) + "\n" + json.dumps(ROW),
        ":2: timestamp goes back by 0.002 s; rows must be sorted by time",
    ),
    "too few blocks": (
        mooncake(hash_ids=[1]),
        ":2: 1 hash_ids for input_length 600; 2 blocks of 512 tokens are expected",
    ),
    "text blocks": (
        mooncake(hash_ids=["a", "b"]),
        ":2: hash_ids is ['a', 'b']; a list of whole numbers is expected",
    ),
    "blocks in some": (
        json.dumps(ROW) + "\n" + without(ROW, "hash_ids"),
        ":2: no hash_ids, though other rows have them; all rows or none",
    ),
    # Bailian
    "chat twice": (json.dumps(CHAT) + "\n" + json.dumps(CHAT), ":2: chat_id 1 appears a second time"),
    "chat without id": (
        json.dumps({**CHAT, "chat_id": None}),
        ":1: chat_id is None; a number or text is expected (parent -1: a first turn)",
    ),
    "chat of itself": (
        json.dumps({**CHAT, "parent_chat_id": 1}),
        ":1: parent_chat_id makes a chat its own parent: 1 <- 1",
    ),
    "chats in a ring": (
        "\n".join(json.dumps({**CHAT, "chat_id": i, "parent_chat_id": i % 3 + 1}) for i in (1, 2, 3)),
        ":1: parent_chat_id makes a chat its own parent: 1 <- 2 <- 3 <- 1",
    ),
    # BurstGPT, Vidur
    "burst total": (
        BURST + "1,5,5,10\n2,5,5,11\n",
        ':3: Total tokens is "11"; request + response are 10; which of them is wrong?',
    ),
    "burst failure": (
        BURST + "1,5,0,5\n2,5,5,10\n",
        ":2: a failed request (Response tokens is 0), the first of 1 in 2; --drop-failed",
    ),
    "burst time": (
        BURST + "x,5,5,10\n",
        ':2: Timestamp is "x"; seconds since the start are expected, as 12.5',
    ),
    "vidur infinite": (VIDUR + "inf,5,5\n", ':2: arrived_at is "inf"; seconds since the start are expected'),
    "vidur back": (VIDUR + "2,5,5\n1,5,5\n", ":3: arrived_at goes back by 1 s; rows must be sorted by time"),
    # result files
    "summary only": (
        without(RUN, "input_lens"),
        ": no input_lens; record the run with --save-result --save-detailed to keep each request",
    ),
    "uneven arrays": (
        json.dumps({**RUN, "errors": ["", ""]}),
        ": arrays of different lengths: {'input_lens': 1, 'output_lens': 1, 'start_times': 1, 'errors': 2}",
    ),
    "text array": (json.dumps({**RUN, "errors": "none"}), ': errors is "none"; a list is expected'),
    "all failed": (
        json.dumps({**RUN, "output_lens": [0], "errors": ["Bad Request"]}),
        ": all 1 requests failed; no workload is left",
    ),
    "cut off result": (json.dumps(RUN)[:-30], ":1: not valid JSON (cut off?): "),
    "no benchmark": ('{"benchmarks": []}', ": no benchmarks; a guidellm file has a list of them"),
    "two rates": (
        json.dumps({"benchmarks": [{}, {}]}),
        ": 2 benchmarks (one a rate) in one file; run guidellm with one rate for a trace",
    ),
    "no start": (
        guide(info={}),
        ": info.timings.targeted_start is missing; non-negative seconds are expected",
    ),
    "no metadata": (
        json.dumps({"metadata": 3, "metrics": {}}),
        ":1: metadata is 3; an object is expected, as AIPerf writes records",
    ),
    "warm-up only": (
        json.dumps({"metadata": {"benchmark_phase": "warmup"}, "metrics": {}}),
        ": all 1 lines are warm-up; no workload is left",
    ),
    "no info": (
        json.dumps([{"start_time": 1, "info": {}}, {"start_time": 2}]),
        ": record 1 is {'start_time': 2}; an object with info is expected",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_with_one_line(put, name):
    content, message = CASES[name]
    path = put("trace", content)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert text.startswith(f"{path}{message}")
    assert "\n" not in text


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(TraceFormatError, match=r"nothing.csv: no such file$"):
        read_trace(tmp_path / "nothing.csv")
    with pytest.raises(TraceFormatError, match=r": is a directory; give the trace file itself$"):
        detect_format(tmp_path)


def test_unknown_format_name(put):
    with pytest.raises(InputError, match=r"format: 'mooncke' is not a trace format; did you mean mooncake\?"):
        read_trace(put("a.csv", GOOD), format="mooncke")


def test_named_format_overrules_the_content(put):
    with pytest.raises(TraceFormatError, match=r":1: no column 'num_prefill_tokens'"):
        read_trace(put("a.csv", GOOD), format="vidur")


def test_no_row_is_lost_in_silence(put):
    """Blank lines are no rows; everything else is kept."""
    assert len(read_trace(put("a.csv", GOOD + "\n\n" + T1 + ",1,1\n\n"))) == 2
