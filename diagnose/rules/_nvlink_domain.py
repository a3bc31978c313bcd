"""Which processes share an NVLink switch, and whether NCCL could use it without multiprocessors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from diagnose.rules._facts import Facts

_NVLS_CAPABILITY = 9
"""Compute capability (Hopper) from which the switch can add up and copy engines are used."""
_CTA_POLICY_ZERO = (2, 28)
"""NCCL that brought collectives of the copy engines (NCCL_CTA_POLICY=ZERO)."""
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")


def links_noted(facts: Facts, source: int) -> bool:
    """Whether the links of a process's GPU were asked for when it was recorded."""
    return isinstance(_gpu(facts, source).get("nvlinks"), list)


def is_switched(facts: Facts, source: int) -> bool:
    """Whether NVLink ties a process's GPU, of Hopper or newer, to a switch."""
    gpu = _gpu(facts, source)
    major = str(gpu.get("compute_capability", "")).partition(".")[0]
    links = gpu.get("nvlinks")
    peers = [one.get("peer") for one in links if isinstance(one, Mapping)] if links else []
    return major.isdecimal() and int(major) >= _NVLS_CAPABILITY and "switch" in peers


def has_copy_engine_collectives(facts: Facts, source: int) -> bool:
    """Whether the NCCL of a process (as loaded, else as built with) is new enough for them."""
    noted = facts.environment(source)
    match = _VERSION.match(str(noted.get("nccl_loaded") or noted.get("nccl") or ""))
    return match is not None and (int(match[1]), int(match[2])) >= _CTA_POLICY_ZERO


def in_one_domain(facts: Facts, group_ranks: str | None, group_size: int) -> bool:
    """Whether a group's ranks, all recorded, use GPUs of one machine, one each.

    Machines that one NVLink domain spans (NVL72) are not told: there the answer is False.
    """
    sources = {one.rank: number for number, one in enumerate(facts.trace.sources)}
    ranks = _ranks(group_ranks)
    if ranks is None and all(one.world_size == group_size for one in facts.trace.sources):
        ranks = list(range(group_size))
    if ranks is None or len(ranks) != group_size or not set(ranks) <= sources.keys():
        return False
    members = [sources[rank] for rank in ranks]
    hosts = {facts.trace.sources[number].host for number in members}
    identities = [_gpu(facts, number).get("uuid") for number in members]
    shared = len(set(identities)) < len(identities) and None not in identities
    return len(hosts) == 1 and None not in hosts and not shared


def members_of(facts: Facts, group_ranks: str | None) -> list[int]:
    """The recorded sources of a group; all where its ranks are not written out."""
    ranks = _ranks(group_ranks)
    sources = enumerate(facts.trace.sources)
    return [number for number, one in sources if ranks is None or one.rank in ranks]


def _ranks(text: str | None) -> list[int] | None:
    try:
        found: Any = json.loads(text or "")
    except ValueError:
        # Long lists are cut with dots.
        return None
    good = isinstance(found, list) and all(isinstance(one, int) for one in found)
    return found if good and found else None


def _gpu(facts: Facts, source: int) -> Mapping[str, Any]:
    gpu = facts.environment(source).get("gpu")
    return gpu if isinstance(gpu, Mapping) else {}
