"""The pure order functions: every placement builds the same tree, and chunks cover every buffer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.placement import Placement
from easyscale.train.reduce.order import Node, complete_nodes, exchange_order, path_to, ring_chunks, ring_order


@st.composite
def placements(draw: st.DrawFn, max_ests: int = 17) -> Placement:
    """Any placement: uneven, not consecutive, in any order."""
    ranks = draw(st.permutations(range(draw(st.integers(1, max_ests)))))
    cuts = sorted(draw(st.sets(st.integers(1, len(ranks) - 1)))) if len(ranks) > 1 else []
    bounds = [0, *cuts, len(ranks)]
    return Placement(tuple(tuple(ranks[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)))


def written(node: Node) -> str:
    """The sum as one writes it, every parenthesis in its place."""
    if node.is_leaf:
        return str(node.start)
    left, right = node.split()
    return f"({written(left)}+{written(right)})"


def test_tree_of_five() -> None:
    assert written(Node(0, 5)) == "(((0+1)+(2+3))+4)"


def test_tree_of_six_splits_at_four() -> None:
    assert written(Node(0, 6)) == "(((0+1)+(2+3))+(4+5))"


@given(st.integers(2, 200))
def test_left_holds_the_largest_power_of_two_below_the_length(num_ests: int) -> None:
    left, right = Node(0, num_ests).split()
    length = left.stop - left.start
    assert length & (length - 1) == 0
    assert length < num_ests <= 2 * length
    assert (left.stop, right.stop) == (right.start, num_ests)


@given(st.integers(1, 64), st.data())
def test_path_goes_from_the_root_to_the_rank(num_ests: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, num_ests - 1))
    path = path_to(Node(0, num_ests), rank)
    assert (path[0], path[-1]) == (Node(0, num_ests), Node(rank, rank + 1))
    assert all(child in parent.split() for parent, child in zip(path, path[1:], strict=False))


@given(placements())
def test_workers_sums_make_up_all_ranks_each_once(placement: Placement) -> None:
    root = Node(0, placement.num_ests)
    for ranks in placement.ranks_by_worker:
        nodes = complete_nodes(root, ranks)
        assert sorted(rank for node in nodes for rank in range(node.start, node.stop)) == sorted(ranks)
        assert nodes == sorted(nodes)


@given(placements())
def test_workers_sums_are_the_largest_possible(placement: Placement) -> None:
    root = Node(0, placement.num_ests)
    for ranks in placement.ranks_by_worker:
        nodes = set(complete_nodes(root, ranks))
        for node in nodes - {root}:
            parent = path_to(root, node.start)[path_to(root, node.start).index(node) - 1]
            assert not set(range(parent.start, parent.stop)) <= set(ranks)


@given(placements())
def test_sums_of_all_workers_add_up_along_the_tree(placement: Placement) -> None:
    root = Node(0, placement.num_ests)
    brought = {node for ranks in placement.ranks_by_worker for node in complete_nodes(root, ranks)}

    def add(node: Node) -> str:
        if node in brought:
            return written(node)
        left, right = node.split()
        return f"({add(left)}+{add(right)})"

    assert add(root) == written(root)


@given(st.integers(0, 5), st.integers(0, 3), st.data())
def test_aligned_placements_exchange_siblings(log_workers: int, log_each: int, data: st.DataObject) -> None:
    workers, each = 1 << log_workers, 1 << log_each
    root = Node(0, workers * each)
    aligned = [Node(w * each, (w + 1) * each) for w in range(workers)]
    shuffled = data.draw(st.permutations(aligned))
    order = exchange_order(root, shuffled)
    assert order is not None
    assert [shuffled[worker] for worker in order] == aligned


@given(placements())
def test_an_exchange_adds_in_tree_order(placement: Placement) -> None:
    root = Node(0, placement.num_ests)
    nodes = [complete_nodes(root, ranks) for ranks in placement.ranks_by_worker]
    if any(len(own) != 1 for own in nodes):
        return
    order = exchange_order(root, [own[0] for own in nodes])
    if order is None:
        return
    sums = [written(nodes[worker][0]) for worker in order]
    while len(sums) > 1:
        sums = [f"({left}+{right})" for left, right in zip(sums[::2], sums[1::2], strict=True)]
    assert sums == [written(root)]


@given(st.integers(0, 10**7), st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_ring_chunks_cover_the_buffer(elements: int, element_size: int, num_ranks: int) -> None:
    chunks = ring_chunks(elements, element_size, num_ranks)
    assert len(chunks) == num_ranks
    assert chunks[0][0] == 0
    assert chunks[-1][1] == elements
    assert all(start <= stop for start, stop in chunks)
    assert all(before[1] == after[0] for before, after in zip(chunks, chunks[1:], strict=False))


@given(st.integers(1, 64), st.data())
def test_ring_order_takes_every_rank_once_and_ends_with_the_owner(num_ranks: int, data: st.DataObject) -> None:
    chunk = data.draw(st.integers(0, num_ranks - 1))
    order = ring_order(chunk, num_ranks)
    assert sorted(order) == list(range(num_ranks))
    assert order[-1] == chunk
    assert all((before - 1) % num_ranks == after for before, after in zip(order, order[1:], strict=False))
