"""The colours of every figure, on the page (page.css has them too) and in print."""

# Okabe and Ito's, told apart by colour-blind eyes, with olive for a yellow that white paper hardly shows, and three more for
# many classes.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#5E5500", "#3A3A3A"),
    *("#8A8A8A", "#8C5A2B", "#7FA832"),
)
BLUE, ORANGE, GREEN, RED, SKY, PURPLE, OLIVE, BLACK, GREY, *_ = COLOURS
INK, MUTED, LINE = "#14202B", "#566472", "#DFE5EB"
