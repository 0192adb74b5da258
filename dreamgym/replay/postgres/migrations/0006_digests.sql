-- Digest of a trajectory with all its steps (Trajectory.digest), by which one that has changed since it was stored is
-- recognised. What was there before this migration has none: it is compared step by step when it is stored again.
ALTER TABLE trajectories ADD COLUMN digest bytea;
