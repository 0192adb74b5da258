"""Everything that touches somebody else's framework: models, agents, trainers, real environments."""
