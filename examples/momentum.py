"""A method of one's own: FedAvg with momentum on the server (FedAvgM: Hsu, Qi, Brown, 2019), here with FixMatch."""

from dataclasses import dataclass

from torch import Tensor

from kithkin.methods import METHODS, AvgSettings, Entry, FedAvg, Global, Reply, Setting


@dataclass(frozen=True)
class Settings(AvgSettings):
    push: float = 0.9
    """beta, how much of the last rounds' movement the global model keeps."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Moving(Global):
    speed: Tensor


@dataclass(frozen=True, eq=False)
class FedAvgM(FedAvg):
    push: float = 0.9

    def open(self, clients: int, w0: Tensor) -> Moving:
        return Moving(w0, speed=w0 * 0)

    def merge(self, server: Moving, replies: dict[int, Reply], round: int) -> Moving:
        speed = super().merge(server, replies, round).w - server.w
        speed[: self.trained] += self.push * server.speed[: self.trained]  # a variance must not overshoot
        return Moving(server.w + speed, speed=speed)


def make(settings: Settings, at: Setting) -> FedAvgM:
    fixavg = vars(METHODS["fixavg"].make(settings, at))
    return FedAvgM(**fixavg | {"trained": at.layout.trained, "push": settings.push})


FEDAVGM = Entry("FedAvg with FixMatch and momentum on the server", Settings(), make, states=(Moving,))
