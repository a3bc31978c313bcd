"""A drawn page as it is sent to the browser: its components, words, grids and figures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly


def parts(component: Any) -> Iterator[dict[str, Any]]:
    """Every component of a page, as it is sent to the browser."""
    sent = json.loads(json.dumps(component, cls=plotly.utils.PlotlyJSONEncoder))
    waiting = [sent]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, list):
            waiting[:0] = one
        elif isinstance(one, dict):
            if "namespace" in one:
                yield one
            waiting[:0] = list(one.values())


def words(component: Any) -> str:
    """The text of a page, without its grids and figures."""
    texts = []
    for one in parts(component):
        inside = one["props"].get("children")
        inside = inside if isinstance(inside, list) else [inside]
        texts += [str(text) for text in inside if isinstance(text, str | int | float)]
    return "\n".join(texts)


def props(component: Any, name: str) -> dict[str, Any]:
    """The properties of the one component that has an id."""
    [found] = [one["props"] for one in parts(component) if one["props"].get("id") == name]
    return found


def rows(component: Any, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = props(component, name)["rowData"]
    return found


def traces(component: Any, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = props(component, name)["figure"]["data"]
    return found


def numbers(given: Any) -> list[float]:
    """The values of an axis, also where plotly packed them."""
    if isinstance(given, dict):
        packed = np.frombuffer(base64.b64decode(given["bdata"]), np.dtype(given["dtype"]))
        return [float(one) for one in packed]
    return list(given)
