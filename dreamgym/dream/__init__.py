"""M_exp, the reasoning experience model: from history, state, action and recorded transitions to the next state."""
