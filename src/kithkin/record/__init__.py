"""The run folder: manifest, metrics, clients, summary, checkpoints; and the run that writes it."""

from kithkin.record.folder import Folder
from kithkin.record.run import Display, Result, StopRunError, resume, run

__all__ = ["Display", "Folder", "Result", "StopRunError", "resume", "run"]
