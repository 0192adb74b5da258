"""Learns what calls do to a world of objects that is known in part: rules that most recordings show, not every one.

`learn_rules`, `missing_facts` and what they return are the whole interface. The programs of `dreamgym.synthesis` give
exactly what was recorded or nothing, which suits a server that tells its whole state. What a reader knows of a world
has gaps: a refusal may have a reason that nobody saw. So here a rule is what holds in all successes and would not hold
by chance.
"""

from dreamgym.synthesis.objects.calls import ObjectCall
from dreamgym.synthesis.objects.learn import learn_rules
from dreamgym.synthesis.objects.reasons import MissingFact, missing_facts
from dreamgym.synthesis.objects.rules import ObjectResult, ObjectRules, ToolRules

__all__ = ["MissingFact", "ObjectCall", "ObjectResult", "ObjectRules", "ToolRules", "learn_rules", "missing_facts"]
