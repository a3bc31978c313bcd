"""Tables become grids: figures in the unit of the page, texts safe, what is unknown left out."""

from __future__ import annotations

import numpy as np

from dashboard.grid import Column, gpu_column, grid, step_column
from dashboard.shown import Shown
from diagnose.analyzers._noise import Judgement
from diagnose.analyzers.comparison import COMPARISON
from diagnose.schema import NULL
from diagnose.trace import Strings, Table


def definitions(made) -> dict[str, dict]:
    return {one["field"]: one for one in made.columnDefs}


def test_times_are_in_the_unit_of_the_page(known_shown: Shown) -> None:
    table = known_shown.table("overlap", by="rank")
    columns = [gpu_column(known_shown), Column("compute_ns", "compute"), Column("overlap_pct", "x")]
    made = grid(known_shown, table, columns, "g")
    # 100 + 100 + 200 us of compute; 50 of the 250 us of communication are beside gemm_b.
    assert made.rowData == [{"row": 0, "gpu": "rank 0", "compute_ns": 400.0, "overlap_pct": 20.0}]
    assert definitions(made)["compute_ns"]["headerName"] == "compute (us)"
    assert definitions(made)["overlap_pct"]["headerName"] == "x (%)"


def test_steps_are_named_and_what_belongs_to_none_says_so(known_shown: Shown) -> None:
    table = known_shown.table("overlap", by="step")
    made = grid(known_shown, table, [step_column(known_shown, "none")], "g")
    assert [row["step"] for row in made.rowData] == ["ProfilerStep#1", "ProfilerStep#2"]
    rows = np.array([NULL, -1])
    unknown = Table(table.schema, {**table.columns, "step_row": rows}, table.strings)
    made = grid(known_shown, unknown, [step_column(known_shown, "none")], "g")
    assert [row["step"] for row in made.rowData] == ["none", "none"]


def comparison(rows: int, names: list[str], **columns) -> Table:
    strings = Strings(names)
    given = {"name": np.arange(rows) % len(names), "judgement": np.full(rows, Judgement.BEYOND)}
    made = {}
    for column in COMPARISON.columns:
        values = columns.get(column.name, given.get(column.name))
        if values is None:
            values = np.full(rows, np.nan if column.dtype == "float64" else NULL)
            if column.choices is not None or column.dtype == "int32":
                values = np.zeros(rows)
        made[column.name] = np.asarray(values).astype(column.dtype)
    return Table(COMPARISON, made, strings)


def test_a_column_of_which_nothing_is_known_is_left_out(known_shown: Shown) -> None:
    table = comparison(2, ["a"], before_ns=[1000.0, np.nan])
    columns = [Column("name", "name"), Column("before_ns", "before"), Column("after_ns", "after")]
    made = grid(known_shown, table, columns, "g")
    assert list(definitions(made)) == ["name", "before_ns"]
    assert [row["before_ns"] for row in made.rowData] == [1.0, None]


def test_what_reads_as_zero_has_no_sign(known_shown: Shown) -> None:
    # Times are shown in us with one decimal: 49 ns less reads as 0.0, 51 ns as -0.1.
    table = comparison(2, ["a"], change_ns=[-49.0, -51.0])
    made = grid(known_shown, table, [Column("change_ns", "change")], "g")
    assert [str(round(row["change_ns"], 6)) for row in made.rowData] == ["0.0", "-0.051"]


def test_changes_have_a_sign_and_choices_have_words(known_shown: Shown) -> None:
    table = comparison(1, ["a"], change_pct=[5.0])
    words = {Judgement.BEYOND: "more than chance"}
    columns = [Column("change_pct", "c", signed=True), Column("judgement", "j", words=words)]
    made = grid(known_shown, table, columns, "g")
    assert "'+,.1f'" in definitions(made)["change_pct"]["valueFormatter"]["function"]
    assert made.rowData[0]["judgement"] == "more than chance"


def test_names_are_data_and_without_what_turns_writing_around(known_shown: Shown) -> None:
    table = comparison(1, ["<img src=x>\u202eevil\x00"])
    made = grid(known_shown, table, [Column("name", "name")], "g")
    [row] = made.rowData
    assert row["name"].startswith("<img src=x>")
    assert "\u202e" not in row["name"]
    assert "\x00" not in row["name"]
    assert made.dangerously_allow_code is False


def test_a_long_table_scrolls_and_can_be_filtered_a_short_one_is_whole(known_shown: Shown) -> None:
    short = grid(known_shown, comparison(14, ["a"]), [Column("name", "n")], "g")
    long = grid(known_shown, comparison(15, ["a"]), [Column("name", "n")], "g")
    assert (short.dashGridOptions["domLayout"], short.defaultColDef["filter"]) == (
        "autoHeight",
        False,
    )
    assert (long.dashGridOptions["domLayout"], long.defaultColDef["filter"]) == ("normal", True)


def test_the_rest_of_an_endless_table_is_told(known_shown: Shown) -> None:
    made = grid(known_shown, comparison(20_001, ["a"]), [Column("name", "n")], "g")
    drawn, said = made.children
    assert len(drawn.rowData) == 20_000
    assert said.children == "The first 20,000 of 20,001 rows."
