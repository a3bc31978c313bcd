"""What overlap costs: compute beside communication is slower, and the other way round.

Definitions (``docs/contention.md`` has the reasons):

- overlapped: a compute kernel that communication runs beside on the same GPU, for
  more than 2 % of what it takes alone; its twins: the same kernel (GPU, name, launch
  shape, input shapes) beside none, in this recording or in one made for that.
- cost: duration less what the kernel takes alone (its twins' mean at that time).
- slowdown: overlapped time over what the same work takes alone, so 1.123 is 12.3 %
  slower while communication runs.
- duration ratio: whole duration over what the kernel takes alone, overlapped or not;
  it holds also where the effect outlasts the overlap.
- coverage: overlapped kernel time of kernels that have twins, over all of it.
"""

from __future__ import annotations

from diagnose.analysis import Analyzer
from diagnose.contention._tables import (
    COMMUNICATION_SLOWDOWN,
    CONTENTION,
    CONTENTION_BASIS,
    CONTENTION_CAUSES,
    CONTENTION_KERNELS,
    OVERLAP_BALANCE,
    Verdict,
)
from diagnose.contention.balance import overlap_balance
from diagnose.contention.basis import contention_basis
from diagnose.contention.causes import contention_causes
from diagnose.contention.slowdown import contention, contention_kernels
from diagnose.contention.transfers import communication_slowdown
from diagnose.schema import Detail

__all__ = [
    "ANALYZERS",
    "Verdict",
    "communication_slowdown",
    "contention",
    "contention_basis",
    "contention_causes",
    "contention_kernels",
    "overlap_balance",
]

ANALYZERS = (
    Analyzer("contention", Detail.SHAPES, CONTENTION, contention),
    Analyzer("contention_kernels", Detail.SHAPES, CONTENTION_KERNELS, contention_kernels),
    Analyzer("contention_basis", Detail.SHAPES, CONTENTION_BASIS, contention_basis),
    Analyzer("contention_causes", Detail.SHAPES, CONTENTION_CAUSES, contention_causes),
    Analyzer("overlap_balance", Detail.SHAPES, OVERLAP_BALANCE, overlap_balance),
    Analyzer("communication_slowdown", Detail.GPU, COMMUNICATION_SLOWDOWN, communication_slowdown),
)
"""Twins are told by the input shapes of the operators that launched them."""
