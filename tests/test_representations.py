"""What values show of themselves in a notebook and in a terminal."""

from depthchart import RULES, Geometry
from depthchart.events import Entry, NodeAdded, StateDropped, StateFiled
from depthchart.redraw import redraw

EVENTS = [
    NodeAdded(1, 0, 0, 1024, "a", ""),
    StateFiled(1, 1024, 1024, True),
    NodeAdded(2, 1, 1024, 2048, "<b>", ""),
    StateFiled(2, 2048, 1984, False),
    NodeAdded(3, 1, 1024, 1536, "c", ""),
    StateFiled(3, 1536, 1536, True),
    StateDropped(3, "evicted"),
    NodeAdded(4, 3, 1536, 2048, "d", ""),
]
VIEW = redraw(Entry(float(at), at, event) for at, event in enumerate(EVENTS))


def test_nodes_in_words():
    assert [repr(node) for node, _ in VIEW.walk()] == [
        "Node 1 [0, 1,024) state of 1,024 tokens",
        "Node 2 [1,024, 2,048) MISPLACED state: has read 1,984 tokens (−64)",
        "Node 3 [1,024, 1,536) tombstone: its state was evicted",
        "Node 4 [1,536, 2,048) no state",
    ]


def test_a_tree_in_words():
    assert repr(VIEW) == "TreeView of 4 nodes: 1 bare, 1 misplaced, 1 state, 1 tombstone"
    assert str(VIEW).splitlines()[4] == "      Node 4 [1,536, 2,048) no state"
    assert repr(redraw([])) == "TreeView of 0 nodes"


def test_html_escapes_and_tells_the_same():
    html = VIEW._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b><" not in html
    assert html.count("<tr>") == 5
    node = VIEW.nodes[2]._repr_html_()
    assert "has read 1,984 tokens (−64)" in node
    assert "node 1" in node


def test_a_large_tree_shows_its_beginning():
    big = redraw(Entry(0.0, 0, NodeAdded(at, 0, 0, 64, "r", "")) for at in range(1, 101))
    assert "and 40 more" in big._repr_html_()


def test_a_decision_and_a_geometry_show_themselves():
    geometry = Geometry(64, dcp_size=8)
    decision = RULES["absolute"](geometry, 64, 604)
    assert "512" in decision._repr_html_()
    assert "tree_page" in geometry._repr_html_()
