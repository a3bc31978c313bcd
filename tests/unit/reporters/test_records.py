"""What is written as JSON can always be written, and read again."""

from __future__ import annotations

import json

import msgspec
import pytest

from diagnose.findings import Diagnosis
from diagnose.reporters import Page
from diagnose.reporters._csv import csv_text
from diagnose.reporters._info import write
from diagnose.reporters._records import encode
from tests.builder import TraceBuilder, build_trace


def test_half_a_surrogate_pair_is_escaped_wherever_it_stands():
    document = {"a\ud800": ["b\ud801", {"c": "d"}], "n": msgspec.Raw(b"1.5")}
    assert json.loads(encode(document)) == {"a\\ud800": ["b\\ud801", {"c": "d"}], "n": 1.5}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_a_spreadsheet_runs_no_name(text):
    assert csv_text([{"name": text, "n": msgspec.Raw(b"-1.5")}]) == f"name,n\n'{text},-1.5\n"


def test_text_with_commas_and_lines_stays_one_cell():
    assert csv_text([{"name": 'a,"b"', "x": None}]) == 'name,x\n"a,""b""",\n'


def test_info_of_many_files_is_short_and_says_so():
    trace = build_trace(*(TraceBuilder(rank=n).kernel("gemm", 0, 1, launch=0) for n in range(70)))
    text = write(Diagnosis(trace), "text", Page())
    assert "and 6 more files" in text
    assert "file63.json" in text
    assert "file64.json" not in text
    assert len(json.loads(write(Diagnosis(trace), "json", Page()))["inputs"]) == 70
