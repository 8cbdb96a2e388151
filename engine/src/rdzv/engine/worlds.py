"""How a world is written down: a small one in the state, a large one on pages beside it, of which a node reads one."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final
from zlib import crc32

from rdzv_core.backend import MAX_PAYLOAD
from rdzv_core.errors import RendezvousStateError

from .client import DecodedSnapshot, VersionedValue
from .codec import decode
from .effects import AT_ONCE, Coroutine, CreateAll, Put, Read, ReadAll, Together
from .records import Page, Pages, State, world_folder

PAGE: Final = 64
"""Ids on a page, on average, and at most in the state itself: some 3 KB."""

SHARED: Final = 4
"""Consecutive rounds of one and the same world that share its pages, so that no node reads any. Not more: what a leader
removes goes back a few rounds (`SWEPT`), and the pages stay until all of these rounds are over."""

UNKNOWN: Final = "?"
"""What the name of a member begins with that is not known any more; an id never does."""


def page_key(pages: Pages, node_id: str) -> str:
    """The page on which a node stands, if it is in the world. Not by rank: a node does not know that yet."""
    return f"{pages.folder}/{crc32(node_id.encode()) % pages.count}"


def rounds_needed(state: State) -> int:
    """How many rounds back what belongs to a round may still be asked for: its store until two more are formed, and so
    its world, whose pages may be those of the first of several rounds."""
    return 2 if state.max_nodes <= PAGE else SHARED + 1


def write_world(
    state: State, nonce: str, deadline: Callable[[], float], same: Pages | None = None, at_once: int = 1
) -> Coroutine[State]:
    """Write a large world onto pages; returns the state that is then to be published.

    Nothing counts until a state names the folder, and no other leader ever writes into it: its name has a nonce.

    Args:
        state: The state, with all members.
        nonce: Makes the folder's name unique.
        deadline: The deadline for the calls that begin together, `AT_ONCE` at most.
        same: The pages of the round before, if its world has the same members with the same ranks.
        at_once: How many keys the service makes in one step.
    """
    if len(state.world) <= PAGE:
        return state
    if same is not None and state.round - same.round < SHARED:
        shared = replace(state, world=(), pages=same)
        # A service that has lost its data may lack some of them, and what cannot be read is written anew.
        with suppress(RendezvousStateError):
            if (yield from read_world(shared, deadline())).world == state.world:
                return shared
    folder = f"{world_folder(state.round)}/{state.attempt}.{nonce}"
    pages = Pages(folder, -(-len(state.world) // PAGE), len(state.world), state.world[0])
    ranks: dict[str, dict[str, int]] = {f"{folder}/{number}": {} for number in range(pages.count)}
    for rank, node_id in enumerate(state.world):
        ranks[page_key(pages, node_id)][node_id] = rank
    yield from _make_pages({key: Page(page).encode() for key, page in ranks.items()}, deadline, at_once)
    return replace(state, world=(), pages=pages)


def _make_pages(left: Mapping[str, bytes], deadline: Callable[[], float], at_once: int) -> Coroutine[None]:
    """Write pages, as many at once as a service makes in one step; one by one what is not known to be there then."""
    if at_once > 1:
        batches, made = [*_batches(left, at_once)], list[bool]()
        for start in range(0, len(batches), AT_ONCE):
            made += yield Together(tuple(CreateAll(batch, deadline()) for batch in batches[start : start + AT_ONCE]))
        left = {key: page for batch, done in zip(batches, made, strict=True) if not done for key, page in batch.items()}
    for batch in _batches(left, AT_ONCE):
        yield Together(tuple(Put(key, page, deadline(), previous=None) for key, page in batch.items()))


def _batches(pages: Mapping[str, bytes], most: int) -> Iterator[Mapping[str, bytes]]:
    """Pages by what is made in one step: so many of them, and `MAX_PAYLOAD` bytes."""
    batch: dict[str, bytes] = {}
    for key, page in pages.items():
        if batch and (len(batch) == most or sum(map(len, batch.values())) + len(page) > MAX_PAYLOAD):
            yield batch
            batch = {}
        batch[key] = page
    if batch:
        yield batch


def read_page(state: State, node_id: str, deadline: float) -> Coroutine[Page | None]:
    """The page of a state's world on which a node stands, if it is a member; None: there is none.

    Then the world stands in the state; or the round is over, and a newer state comes; or a service has lost its data,
    and the members write page and state again.

    Raises:
        RendezvousStateError: It is not what a leader writes.
    """
    if state.pages is None:
        return None
    return _page_of(state, (yield Read(page_key(state.pages, node_id), deadline)))


def restore_page(state: State | None, page: Page | None, node_id: str, deadline: float) -> Coroutine[bool]:
    """Write a node's page again if a service that lost its data has lost it; returns whether it had to be.

    A leader that does not find a node on its page takes the node for new.
    """
    if state is None or state.pages is None or page is None:
        return False
    key = page_key(state.pages, node_id)
    if (yield Read(key, deadline)) is not None:
        return False
    yield Put(key, page.encode(), deadline, previous=None)
    return True


def read_world(state: State, deadline: float) -> Coroutine[State]:
    """The same state with all members of its world, wherever they stand; see `with_world`."""
    if state.pages is None:
        return state
    return with_world(state, (yield ReadAll(state.pages.folder, deadline)))


def with_world(state: State, snapshot: DecodedSnapshot) -> State:
    """The same state with the members that stand in a snapshot of its pages.

    What a service has lost with its data has the name of no node: `UNKNOWN` and its rank.

    Raises:
        RendezvousStateError: The pages are not what a leader writes.
    """
    pages = state.pages
    assert pages is not None  # noqa: S101 - asked for large worlds alone
    world = [f"{UNKNOWN}{rank}" for rank in range(pages.size)]
    for number in range(pages.count):
        page = _page_of(state, snapshot.get(f"{pages.folder}/{number}"))
        for node_id, rank in page.ranks.items() if page is not None else ():
            world[rank] = node_id
    return replace(state, world=tuple(world), pages=None)


def _page_of(state: State, versioned: VersionedValue | None) -> Page | None:
    page = None if versioned is None else decode(Page, versioned.payload)
    if page is not None and page.ranks and (highest := max(page.ranks.values())) >= state.size:
        raise RendezvousStateError(f"Round {state.round} has {state.size} members, and none of rank {highest}.")
    return page


def is_whole(state: State) -> bool:
    """Whether all members of a world are known."""
    return not any(node_id.startswith(UNKNOWN) for node_id in state.world)
