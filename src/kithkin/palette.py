"""The colours of every figure, on the page (page.css has them too) and in print."""

from __future__ import annotations

import re
from importlib.resources import files

# Okabe and Ito's, told apart by colour-blind eyes, with olive for a yellow that white paper hardly shows, and three more for
# many classes.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#5E5500", "#3A3A3A"),
    *("#8A8A8A", "#8C5A2B", "#7FA832"),
)
BLUE, ORANGE, GREEN, RED, SKY, PURPLE, OLIVE, BLACK, GREY, *_ = COLOURS
INK, MUTED, LINE = "#14202B", "#566472", "#DFE5EB"


def schemes() -> list[str]:
    """The report's colours and sizes, light and dark, as lines of CSS: other pages wear them too."""
    css = files("kithkin.report").joinpath("page.css").read_text(encoding="utf-8")
    return re.findall(r"^:root(?:\[data-theme=dark\])? \{(.*?)^\}", css, re.DOTALL | re.MULTILINE)
