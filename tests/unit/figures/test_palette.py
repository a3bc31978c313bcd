"""Colours: readable, told apart by people who do not see red or green, replaceable."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from diagnose.plotting.palette import DARK, LIGHT, STATE_FIELDS, properties, recoloring

# Machado, Oliveira and Fernandes 2009, severity 1.0; on linear RGB.
PROTANOPIA = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
]
DEUTERANOPIA = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
]
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
WHITE = np.array([0.95047, 1.0, 1.08883])
LEAST_DISTANCE = 14
"""In CIE76; 2.3 is just noticeable, and beside each other in a stack colours are easy to tell."""


def linear(color):
    channels = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = np.array(TO_XYZ) @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one, other):
    """WCAG 2: of relative luminances."""
    low, high = sorted(float(np.array(TO_XYZ[1]) @ linear(color)) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_contrast_and_lightness_are_those_of_the_standards():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert lab(linear("#ffffff"))[0] == pytest.approx(100, abs=0.1)
    assert lab(linear("#777777"))[0] == pytest.approx(50.0, abs=0.1)


@pytest.mark.parametrize("seen", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["all", "prot", "deut"])
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_states_are_told_apart_without_red_or_green(palette, seen):
    colors = {name: lab(np.array(seen) @ linear(palette.state(name))) for name in STATE_FIELDS}
    distances = {
        (a, b): float(np.linalg.norm(colors[a] - colors[b]))
        for a, b in itertools.combinations(colors, 2)
    }
    assert min(distances.values()) >= LEAST_DISTANCE, distances


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_is_readable(palette):
    for name in ("ink", "muted", "accent", "critical", "warning", "info", "hint", "good"):
        assert contrast(getattr(palette, name), palette.page) >= 4.5, name
    for name in STATE_FIELDS:
        assert contrast(palette.on_state(name), palette.state(name)) >= 4.4, name


def test_colors_differ_so_that_each_has_one_counterpart():
    light, dark = properties(LIGHT), properties(DARK)
    assert len(set(light.values())) == len(light)
    assert light.keys() == dark.keys()
    assert recoloring(LIGHT, DARK)["#2f5f9e"] == "#5a8dcf"
    assert light["--on-light"] == LIGHT.on_light
    assert light["--series-1"] == LIGHT.series[1]
