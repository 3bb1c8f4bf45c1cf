"""Pods of an indexed job of Kubernetes, one rank each.

Rule: Kubernetes is never asked. The index is in the environment; how many pods there are, and under which name the
pods see one another, the job's manifest must say.
"""

from __future__ import annotations

import re

from aiocoll.errors import UsageError
from aiocoll.place.base import Environ, Place, meeting_url, rank_of, require, tcp_address, whole

PRIORITY = 50
_INDEX = "JOB_COMPLETION_INDEX"
_SIZE = "AIOCOLL_WORLD_SIZE"
_PORT = 29_500


def find(environ: Environ) -> Place | None:
    """The place; they meet at the pod of index 0, unless AIOCOLL_RDZV says otherwise."""
    if not environ.get(_INDEX, "").strip():
        return None
    index = whole(environ, _INDEX)
    require(
        environ,
        (_INDEX, _SIZE),
        because=f"{_INDEX}={index} is, as in an indexed job: its manifest must say how many pods are one world (or "
        "AIOCOLL_RANK=0 and AIOCOLL_WORLD_SIZE=1, where each is a world of its own)",
    )
    rank, size = rank_of(environ, _INDEX, _SIZE)
    stem, domain = _own_name(environ)
    return Place(
        rank=rank,
        size=size,
        job=environ.get("AIOCOLL_JOB_ID", "").strip() or stem,
        init_method=(meeting_url(environ) or _first_pod(stem, domain)) if size > 1 else "",
        names_come_late=True,
    )


def verdict(environ: Environ) -> str:
    """Which of the variables are there."""
    place = find(environ)
    if place is None:
        return f"{_INDEX} is not set"
    return f"rank {place.rank} of {place.size}, meeting at {place.init_method or 'no address (a world of one)'}"


def _own_name(environ: Environ) -> tuple[str, str]:
    """HOSTNAME without the index (a pod is called JOB-INDEX), "" if it is another name; and the pods' domain."""
    name, _, rest = environ.get("HOSTNAME", "").strip().partition(".")
    match = re.fullmatch(rf"(.+)-{whole(environ, _INDEX)}", name)
    return (match[1] if match else ""), environ.get("AIOCOLL_SUBDOMAIN", "").strip() or rest


def _first_pod(stem: str, domain: str) -> str:
    if stem and domain:
        return tcp_address(f"{stem}-0.{domain}", _PORT)
    lacks = "AIOCOLL_SUBDOMAIN is not set" if stem else "HOSTNAME is no pod's name (JOB-INDEX)"
    raise UsageError(
        f"{lacks}, but the pods of an indexed job need it to meet: a headless service and the job's subdomain give "
        f"the pods names; set AIOCOLL_SUBDOMAIN to that subdomain, or AIOCOLL_RDZV to host:port of the pod of index 0"
    )
