"""What a finished run is for: a client's model that answers, asks for labels, leaves the house, and takes in newcomers."""

from kithkin.use.loading import LoadedClient, LoadedRun, load
from kithkin.use.predicting import Predictions, Vote

__all__ = ["LoadedClient", "LoadedRun", "Predictions", "Vote", "load"]
