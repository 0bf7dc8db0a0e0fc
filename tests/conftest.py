"""What every test shares."""

import importlib.util

import pytest

from depthchart.depth import RULES


def pytest_collection_modifyitems(items):
    """GPU tests run where there is a CUDA device, and nowhere else."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def own_rules(monkeypatch):
    """Rules that a test registers are forgotten after it."""
    monkeypatch.setattr(RULES, "_rules", dict(RULES._rules))
