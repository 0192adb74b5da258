-- Which episodes that are over the replay buffer has taken: a server stores the others. Of what is there already, the
-- episodes of training runs count as taken: a run looks for its own, and those that it has retired must not come back.
ALTER TABLE episodes ADD COLUMN archived boolean NOT NULL DEFAULT false;
UPDATE episodes SET archived = true
WHERE stop_reason IS NOT NULL
  AND (body ->> 'policy_version' IS NOT NULL OR EXISTS (SELECT FROM trajectories WHERE trajectories.id = episodes.id));
CREATE INDEX episodes_unarchived ON episodes (id) WHERE stop_reason IS NOT NULL AND NOT archived;

-- When an episode began, took its last step or ended.
ALTER TABLE episodes ADD COLUMN used_at timestamptz NOT NULL DEFAULT now();

-- Idempotency keys are told apart by what they were used for (dreamgym_server.orders).
UPDATE episodes SET idempotency_key = 'create ' || (body ->> 'env') || ' ' || idempotency_key
WHERE idempotency_key IS NOT NULL;
