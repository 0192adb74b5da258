-- The newest recording of an environment is asked for with every step, and most of what is stored is dreamed (source 2).
CREATE INDEX trajectories_recorded ON trajectories (env_id, position) WHERE source <> 2;
