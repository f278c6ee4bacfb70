"""Who helps: uncertainty (9)(10), relation (12)-(14), the helper list (Algorithms 2, 3), pseudo labels (11), votes."""

from kithkin.helpers.listing import Helper, HelperList, Score
from kithkin.helpers.relation import Terms, average, relation
from kithkin.helpers.uncertainty import entropy, least_uncertain
from kithkin.helpers.vote import vote

__all__ = ["Helper", "HelperList", "Score", "Terms", "average", "entropy", "least_uncertain", "relation", "vote"]
