"""A policy from scratch that points at the entities of a reader: 114 thousand parameters, for two CPU cores.

`mapped_state` turns the known state into words, `verbs` learns what can be done with an entity, `codec` turns an
episode into tokens and back, `model` is the network, `create` makes an untrained policy. Nothing here is specific to an
environment.
"""
