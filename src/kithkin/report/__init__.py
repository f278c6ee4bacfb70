"""Runs as something to look at: one page without a network, the same figures for print, and a live view."""

from kithkin.report.gather import gather
from kithkin.report.page import page, write_page

__all__ = ["gather", "page", "write_page"]
