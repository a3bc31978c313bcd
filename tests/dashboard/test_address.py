"""The address holds all that a person sees, and whatever is typed there is harmless."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.address import Address, Selected, parse


def test_an_address_is_read_as_it_is_written() -> None:
    search = "?recording=r~2&from=10&to=250&open=g0.0,g1.0&select=gpu_ops:7&find=a+b&theme=dark"
    found = parse("/timeline", search)
    assert found == Address(
        page="timeline",
        recording="r~2",
        start_ns=10,
        end_ns=250,
        open=("g0.0", "g1.0"),
        selected=Selected("gpu_ops", 7),
        find="a b",
        theme="dark",
    )
    assert parse("/timeline", found.search) == found
    assert found.href.startswith("/timeline?recording=r~2&from=10&to=250")


def test_the_first_page_has_no_name() -> None:
    assert parse("/", "") == Address() == parse(None, None)
    assert Address().href == "/"


@pytest.mark.parametrize(
    "search",
    ["?from=5", "?to=5", "?from=5&to=5", "?from=9&to=5", "?from=x&to=5", f"?from=0&to={2**62}"],
)
def test_half_a_range_is_none(search: str) -> None:
    found = parse("/timeline", search)
    assert (found.start_ns, found.end_ns) == (None, None)


@pytest.mark.parametrize("select", ["", "gpu_ops", "gpu_ops:-1", "gpu_ops:x", "passwd:1", ":1"])
def test_what_is_no_operation_is_not_selected(select: str) -> None:
    assert parse("/timeline", f"?select={select}").selected is None


def test_a_theme_is_one_of_two() -> None:
    assert parse("/", "?theme=light").theme == "light"
    assert parse("/", "?theme=url(x)").theme is None


def test_links_keep_recording_theme_and_time() -> None:
    address = parse("/overlap", "?recording=a&from=1&to=2&theme=dark").to("findings")
    assert address.href == "/findings?recording=a&from=1&to=2&theme=dark"


@given(
    st.builds(
        Address,
        page=st.sampled_from(["", "timeline", "compare"]),
        recording=st.none() | st.text(min_size=1, alphabet=st.characters(codec="utf-8")),
        other=st.none() | st.text(min_size=1, alphabet=st.characters(codec="utf-8")),
        find=st.text(max_size=200, alphabet=st.characters(codec="utf-8")),
        theme=st.sampled_from([None, "light", "dark"]),
    )
)
def test_any_text_survives(address: Address) -> None:
    assert parse(f"/{address.page}", address.search) == address


@given(st.text(), st.text())
def test_nothing_typed_is_an_error(path: str, search: str) -> None:
    found = parse(path, search)
    # What was understood is understood the same way again.
    again = parse(f"/{found.page}", found.search)
    assert dataclasses.replace(again, page="") == dataclasses.replace(found, page="")
