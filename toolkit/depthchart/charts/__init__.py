"""Figures: pure functions from data frames to matplotlib figures."""
