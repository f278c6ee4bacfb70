"""Data: the sets, one's own pictures, and how they are dealt to clients. Nothing in it but augment.py needs torch."""

from kithkin.data.dataset import Dataset, called
from kithkin.data.sources import load, resolved, whole_name
from kithkin.data.split import Share, Split, deal, split_of

__all__ = ["Dataset", "Share", "Split", "called", "deal", "load", "resolved", "split_of", "whole_name"]
