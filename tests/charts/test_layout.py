import pandas as pd
import pytest

from depthchart.charts.layout import lane_layout, relevant_nodes


def tree(links):
    rows = [(n, p, "", s, s + 512, pd.NA, "bare", 0, 0, "r", float(n), float(n)) for n, p, s in links]
    from depthchart.columns import NODES

    return pd.DataFrame(rows, columns=list(NODES))


TREE = tree([(1, -1, 0), (2, 1, 512), (3, 1, 512), (4, 2, 1024)])


def test_every_leaf_has_its_own_lane_and_parents_come_first():
    placed = lane_layout(TREE.sample(frac=1, random_state=1))
    assert placed["node_id"].tolist() == [1, 2, 4, 3]
    assert placed["lane"].tolist() == [0, 0, 0, 1]
    assert placed["reach_lane"].tolist() == [1, 0, 0, 1]


def test_a_ring_is_refused():
    with pytest.raises(ValueError, match="ring"):
        lane_layout(tree([(1, 2, 0), (2, 1, 512)]))


def test_relevant_nodes_keep_their_ancestors():
    assert set(relevant_nodes(TREE, 3)["node_id"]) == {1, 2, 4}
