"""Many least squares at once: over a grid of lags and watched times, over bootstrap draws.

Every fit needs only sums over refreshes of the products of their columns (the shares of
the classes, and the reading). The products are made once; a draw of the bootstrap is a
weighted sum of them, so all draws at all tries are one matrix product.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diagnose.analyzers.power.doing import ClassTimes

Floats = npt.NDArray[np.float64]

NUM_BOOTSTRAPS = 200
_MOST_ROWS = 200_000


class Grid(NamedTuple):
    """The lags and watched parts that are tried, one value each per try, in seconds."""

    lag: Floats
    watched: Floats


def make_grid(lags: Floats, parts: tuple[float, ...], period: float) -> Grid:
    """Every lag (s) with every watched part (of a period, in s)."""
    lag, part = np.meshgrid(lags, np.array(parts), indexing="ij")
    return Grid(lag.reshape(-1), part.reshape(-1) * period)


def wide_rows(
    times: ClassTimes, at: Floats, reading: Floats, grid: Grid, columns: npt.NDArray[np.int64]
) -> Floats:
    """For each try and refresh: the share of each class in the watched time, and the reading."""
    lags, which = np.unique(grid.lag, return_inverse=True)
    watched, part = np.unique(grid.watched, return_inverse=True)
    last = times.until(at[None, :] - lags[:, None])[..., columns]
    wide = np.empty((len(grid.lag), len(at), len(columns) + 1))
    for place, length in enumerate(watched):
        first = times.until(at[None, :] - lags[:, None] - length)[..., columns]
        rows = np.flatnonzero(part == place)
        wide[rows, :, :-1] = ((last - first) / length)[which[rows]]
    wide[:, :, -1] = reading
    return wide


def best_try(
    times: ClassTimes, at: Floats, reading: Floats, grid: Grid, columns: npt.NDArray[np.int64]
) -> int:
    """The try of a grid that leaves least unexplained. Bounded in memory."""
    losses = []
    some = max(_MOST_ROWS // max(len(at), 1), 1)
    for begin in range(0, len(grid.lag), some):
        part = Grid(grid.lag[begin : begin + some], grid.watched[begin : begin + some])
        wide = wide_rows(times, at, reading, part, columns)
        losses.append(solve(wide.transpose(0, 2, 1) @ wide).loss)
    return int(np.argmin(np.concatenate(losses)))


def products_of(wide: Floats) -> Floats:
    """For each refresh and try: the products of its columns, as upper triangles."""
    upper = np.triu_indices(wide.shape[2])
    columns = np.ascontiguousarray(wide.transpose(2, 1, 0))
    products = np.empty((wide.shape[1], wide.shape[0], len(upper[0])))
    for place, (row, column) in enumerate(zip(*upper, strict=True)):
        np.multiply(columns[row], columns[column], out=products[:, :, place])
    return products


class Solved(NamedTuple):
    """Powers, and the sum of squares that they leave."""

    watts: Floats
    loss: Floats


def matrices(moments: Floats) -> Floats:
    """Symmetric matrices from their upper triangles on the last axis."""
    size = (math.isqrt(8 * moments.shape[-1] + 1) - 1) // 2
    full = np.empty((*moments.shape[:-1], size, size))
    upper = np.triu_indices(size)
    full[..., upper[0], upper[1]] = moments
    full[..., upper[1], upper[0]] = moments
    return full


def solve(full: Floats) -> Solved:
    """Least squares from summed products, without the bound at 0."""
    gram, cross, square = full[..., :-1, :-1], full[..., :-1, -1], full[..., -1, -1]
    ridge = 1e-9 * np.trace(gram, axis1=-2, axis2=-1)[..., None, None] * np.eye(gram.shape[-1])
    watts = np.linalg.solve(gram + ridge, cross[..., None])[..., 0]
    return Solved(watts, square - (watts * cross).sum(-1))


def _not_negative(full: Floats) -> Floats:
    """Least squares with no power below 0, for many sums of products.

    The most negative is held at 0 until none is: exact where one at most is negative,
    and a power near 0 is rare enough for more than that.
    """
    gram, cross = full[:, :-1, :-1], full[:, :-1, -1]
    size = gram.shape[-1]
    free = np.ones(cross.shape, bool)
    watts = solve(full).watts
    for _ in range(size):
        wrong = np.flatnonzero((watts < 0).any(1))
        if not len(wrong):
            break
        free[wrong, np.argmin(watts[wrong], 1)] = False
        on = free[wrong]
        held = gram[wrong] * on[:, :, None] * on[:, None, :]
        held[:, np.arange(size), np.arange(size)] += np.where(on, 1e-9, 1.0)
        watts[wrong] = np.linalg.solve(held, (cross[wrong] * on)[..., None])[..., 0]
    return watts


def fit_many(full: Floats, grid: Grid) -> tuple[Floats, Floats, Floats]:
    """Powers, lag and watched length of each sum of products (first axis: sums, second: tries).

    Between the lags tried the loss is a parabola and the powers follow one too.
    """
    num_watched = len(np.unique(grid.watched))
    loss = solve(full).loss.reshape(len(full), -1, num_watched)
    every = np.arange(len(full))
    part = np.argmin(loss.min(1), 1)
    own = loss[every, :, part]
    at = np.clip(np.argmin(own, 1), 1, own.shape[1] - 2)
    before, middle, after = (own[every, at + step] for step in (-1, 0, 1))
    bend = before - 2 * middle + after
    shift = np.divide(before - after, 2 * bend, out=np.zeros(len(every)), where=bend > 0)
    shift = np.clip(shift, -1, 1)
    tries = full.reshape(len(full), -1, num_watched, *full.shape[-2:])
    watts = np.stack([_not_negative(tries[every, at + step, part]) for step in (-1, 0, 1)])
    slope, curve = (watts[2] - watts[0]) / 2, watts[0] - 2 * watts[1] + watts[2]
    moved = watts[1] + slope * shift[:, None] + curve * (shift**2)[:, None] / 2
    lags = grid.lag.reshape(-1, num_watched)[:, 0]
    return (
        np.maximum(moved, 0),
        lags[at] + shift * (lags[1] - lags[0]),
        grid.watched.reshape(-1, num_watched)[0][part],
    )


def bootstrap(
    moments: Floats, grid: Grid, block: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Powers and lag of each draw of blocks."""
    num_blocks = len(moments) // block
    blocks = moments[: num_blocks * block].reshape(num_blocks, block, *moments.shape[1:]).sum(1)
    counts = random.multinomial(
        num_blocks, np.full(num_blocks, 1 / num_blocks), size=NUM_BOOTSTRAPS
    )
    summed = (counts @ blocks.reshape(num_blocks, -1)).reshape(-1, *moments.shape[1:])
    watts, lag, _ = fit_many(matrices(summed), grid)
    return watts, lag
