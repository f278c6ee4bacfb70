"""The helper list H_k of one client (Algorithms 2 and 3).

M   its greatest length, the client itself included
R   how many candidates a search round brings, and how many of the least related a refresh skips while searching goes on
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Score:
    """What client k found of a helper's model: the relation (13), and its answers on D_k^u (9)."""

    relation: float
    p_u: Tensor


@dataclass(frozen=True, eq=False)
class Helper:
    """A copy of client `client`'s model at `version`. Copies of one version share their memory."""

    client: int
    version: int
    w: Tensor
    score: Score | None = None
    evidence: int = 0  # labelled pictures behind it, where a method asks for that

    @property
    def relation(self) -> float:
        return self.score.relation if self.score else 0.0

    def next(self, w: Tensor) -> Helper:
        """The same client's model, one version on."""
        return replace(self, version=self.version + 1, w=w, score=None)


@dataclass(frozen=True, eq=False)
class HelperList:
    """At most M helpers, `owner` always one of them, none twice. Never changed in place."""

    owner: int
    helpers: tuple[Helper, ...]
    M: int

    def __post_init__(self) -> None:
        clients = [h.client for h in self.helpers]
        assert len(clients) == len(set(clients)) <= self.M
        assert self.owner in clients

    def __iter__(self) -> Iterator[Helper]:
        return iter(self.helpers)

    def __len__(self) -> int:
        return len(self.helpers)

    def __contains__(self, client: object) -> bool:
        return any(h.client == client for h in self.helpers)

    @property
    def own(self) -> Helper:
        return next(h for h in self.helpers if h.client == self.owner)

    def test_and_set(self, candidates: Iterable[Helper]) -> HelperList:
        """Algorithm 3: a candidate joins while there is room, else takes the least related place if it is more related."""
        now = self
        for candidate in candidates:
            if candidate.client in now:
                continue
            if len(now) < now.M:
                now = replace(now, helpers=(*now.helpers, candidate))
                continue
            others = [h for h in now.helpers if h.client != now.owner]
            least = min(others, key=lambda h: h.relation, default=None)
            if least and candidate.relation > least.relation:
                now = replace(now, helpers=tuple(candidate if h is least else h for h in now.helpers))
        return now

    def refresh(self, newer: Iterable[Helper]) -> HelperList:
        """Algorithm 2: newer versions take the place of older ones; what is not in the list (any more) is ignored."""
        latest = {h.client: h for h in newer}
        return replace(self, helpers=tuple(latest.get(h.client, h) for h in self.helpers))

    def fill(self, helpers: Iterable[Helper]) -> HelperList:
        """Algorithm 1, line 18: random models join while there is room."""
        now = self
        for helper in helpers:
            if len(now) < now.M and helper.client not in now:
                now = replace(now, helpers=(*now.helpers, helper))
        return now

    def best_first(self) -> list[Helper]:
        return sorted(self.helpers, key=lambda h: -h.relation)
