"""Should this task use a DEQ, the matched explicit network, or neither?"""

from notsodeep.advice.advise import Advice, advise, rule
from notsodeep.advice.evidence import Evidence, LeftOut, evidence
from notsodeep.advice.race import Race, Runner, race

__all__ = ["Advice", "Evidence", "LeftOut", "Race", "Runner", "advise", "evidence", "race", "rule"]
