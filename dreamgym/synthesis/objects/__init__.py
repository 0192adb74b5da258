"""Learns rules of what calls do to a partly known world of objects. Most recordings must follow a rule, not all.

`learn_rules`, `missing_facts` and the types that they return are the whole interface. The programs of
`dreamgym.synthesis` give exactly what was recorded or nothing, which suits a server that reports its whole state. But a
reader knows a world only in part: a refusal may have a reason that no observation showed. So here, the conditions of a
rule hold in nearly all successes and would not hold by chance.
"""

from dreamgym.synthesis.objects.calls import ObjectCall
from dreamgym.synthesis.objects.learn import learn_rules
from dreamgym.synthesis.objects.reasons import MissingFact, missing_facts
from dreamgym.synthesis.objects.rules import ObjectResult, ObjectRules, ToolRules

__all__ = ["MissingFact", "ObjectCall", "ObjectResult", "ObjectRules", "ToolRules", "learn_rules", "missing_facts"]
