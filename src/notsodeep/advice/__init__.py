"""Should this task use a DEQ, the matched explicit network, or neither?"""

from notsodeep.advice.contest import Race, Runner, race
from notsodeep.advice.measurements import Evidence, LeftOut, evidence
from notsodeep.advice.verdict import Advice, advise, rule

__all__ = ["Advice", "Evidence", "LeftOut", "Race", "Runner", "advise", "evidence", "race", "rule"]
