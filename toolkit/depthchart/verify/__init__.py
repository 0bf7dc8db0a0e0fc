"""Bounded exhaustive search for states on wrong nodes, shared pages, leaks and stuck requests."""

from depthchart.verify.bounds import Bounds
from depthchart.verify.counterexample import Counterexample
from depthchart.verify.report import Report
from depthchart.verify.search import verify
from depthchart.verify.world import FAULTS, Fault

__all__ = ["FAULTS", "Bounds", "Counterexample", "Fault", "Report", "verify"]
