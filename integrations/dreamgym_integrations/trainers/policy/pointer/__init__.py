"""A policy from scratch that points at what a reader found: 114 thousand parameters, for two CPU cores.

`mapped_state` turns what is known into words, `verbs` says what can be done with an entity, `codec` speaks for an
episode, `model` is the network, `create` makes an untrained policy. Nothing here knows an environment.
"""
