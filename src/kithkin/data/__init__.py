"""Data: the sets, one's own pictures, and how they are dealt to clients. Nothing here needs torch."""

from kithkin.data.dataset import Dataset
from kithkin.data.sources import load, whole_name
from kithkin.data.split import Share, Split, deal

__all__ = ["Dataset", "Share", "Split", "deal", "load", "whole_name"]
