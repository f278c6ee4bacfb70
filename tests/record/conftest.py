"""Fixtures for the record tests."""

from tiny_runs import one_thread, whole

__all__ = ["one_thread", "whole"]
