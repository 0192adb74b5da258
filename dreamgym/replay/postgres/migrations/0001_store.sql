-- The replay store. Needs PostgreSQL >= 15 and pgvector >= 0.8.0, both checked before this runs.
--
-- Ids of states, keys, outcomes and transitions are content addresses: the first 128 bits of a sha256 made by the
-- client. A key is the pair (state, action). Sources are 0 real, 1 imported, 2 synthetic; a mask of sources has
-- bit 1 << source. Bodies are JSON exactly as the client wrote it.

CREATE TABLE environments (
  id   smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE
);

CREATE TABLE worlds (
  id     int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  env_id smallint NOT NULL REFERENCES environments,
  name   text COLLATE "C" NOT NULL,
  UNIQUE (env_id, name)
);

CREATE TABLE tasks (
  env_id   smallint NOT NULL REFERENCES environments,
  id       text COLLATE "C" NOT NULL,
  position bigint GENERATED ALWAYS AS IDENTITY,
  body     json NOT NULL,
  PRIMARY KEY (env_id, id)
);

-- Curriculum: one row per task and policy version; mean and variance follow from the sums.
CREATE TABLE task_outcomes (
  env_id         smallint NOT NULL,
  task_id        text COLLATE "C" NOT NULL,
  policy_version int NOT NULL,
  attempts       bigint NOT NULL,
  reward_sum     double precision NOT NULL,
  reward_squares double precision NOT NULL,
  PRIMARY KEY (env_id, task_id, policy_version),
  FOREIGN KEY (env_id, task_id) REFERENCES tasks ON DELETE CASCADE
) WITH (fillfactor = 70);

CREATE TABLE trajectories (
  id       text COLLATE "C" PRIMARY KEY,
  position bigint GENERATED ALWAYS AS IDENTITY,
  env_id   smallint NOT NULL REFERENCES environments,
  world_id int NOT NULL REFERENCES worlds,
  source   smallint NOT NULL,
  body     json NOT NULL,                                -- everything but the transitions
  added_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX trajectories_order ON trajectories (env_id, position);

CREATE TABLE trajectory_steps (
  trajectory_id text COLLATE "C" NOT NULL REFERENCES trajectories ON DELETE CASCADE,
  step          int NOT NULL,
  env_id        smallint NOT NULL,
  transition_id uuid NOT NULL,
  body          json,                                    -- only where it differs from the stored transition's
  PRIMARY KEY (trajectory_id, step)
);

-- Distinct transitions.
CREATE TABLE transitions (
  env_id  smallint NOT NULL,
  id      uuid NOT NULL,
  outcome uuid NOT NULL,
  body    json NOT NULL,
  PRIMARY KEY (env_id, id)
) PARTITION BY LIST (env_id);

-- In which worlds a transition was seen, found by its key.
CREATE TABLE sightings (
  env_id          smallint NOT NULL,
  key             uuid NOT NULL,
  transition_id   uuid NOT NULL,
  world_id        int NOT NULL,
  source          smallint NOT NULL,
  only_trajectory text COLLATE "C",                      -- NULL once a second trajectory has seen it too
  PRIMARY KEY (env_id, key, transition_id, world_id, source)
) PARTITION BY LIST (env_id);

-- Which worlds a state belongs to.
CREATE TABLE world_states (
  env_id   smallint NOT NULL,
  state    uuid NOT NULL,
  world_id int NOT NULL,
  sources  smallint NOT NULL,
  PRIMARY KEY (env_id, state, world_id) INCLUDE (sources)
) PARTITION BY LIST (env_id);

-- Whose vectors the store holds. One encoder is ready at a time: vectors of two never mix.
CREATE TABLE encoders (
  id          smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text NOT NULL,
  fingerprint text NOT NULL UNIQUE,
  dim         int NOT NULL CHECK (dim BETWEEN 1 AND 2000),
  ready       boolean NOT NULL DEFAULT true
);
CREATE UNIQUE INDEX one_ready_encoder ON encoders (ready) WHERE ready;

-- Running episodes.
CREATE TABLE episodes (
  id              text COLLATE "C" PRIMARY KEY,
  body            json NOT NULL,                         -- what does not change while it runs
  version         int NOT NULL,
  stop_reason     text,
  answer          text,
  final_reward    double precision,
  error           text,
  undelivered     boolean NOT NULL DEFAULT false,
  expires_at      timestamptz NOT NULL,
  idempotency_key text UNIQUE
) WITH (fillfactor = 60);
CREATE INDEX episodes_expiry ON episodes (expires_at) WHERE stop_reason IS NULL;

CREATE TABLE episode_steps (
  episode_id text COLLATE "C" NOT NULL REFERENCES episodes ON DELETE CASCADE,
  step       int NOT NULL,
  body       json NOT NULL,
  PRIMARY KEY (episode_id, step)
);

-- One partition per environment, made together with the environment.
CREATE FUNCTION ensure_environment(wanted text) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE env smallint; parent text;
BEGIN
  SELECT id INTO env FROM environments WHERE name = wanted;
  IF env IS NULL THEN
    PERFORM pg_advisory_xact_lock(728901, 0);
    INSERT INTO environments (name) VALUES (wanted) ON CONFLICT (name) DO NOTHING;
    SELECT id INTO env FROM environments WHERE name = wanted;
    FOREACH parent IN ARRAY ARRAY['transitions', 'sightings', 'world_states'] LOOP
      EXECUTE format('CREATE TABLE IF NOT EXISTS %1$I PARTITION OF %2$I FOR VALUES IN (%3$s)',
                     parent || '_' || env, parent, env);
    END LOOP;
  END IF;
  RETURN env;
END $$;

-- One narrow table per encoder, and in it one partition per environment.
CREATE FUNCTION ensure_encoder_table(encoder smallint, dim int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TABLE IF NOT EXISTS vectors_%1$s (env_id smallint NOT NULL, key uuid NOT NULL, '
                 'sources smallint NOT NULL, state text NOT NULL, action text NOT NULL, '
                 'embedding halfvec(%2$s) NOT NULL, PRIMARY KEY (env_id, key)) PARTITION BY LIST (env_id)',
                 encoder, dim);
END $$;
CREATE FUNCTION ensure_vectors(encoder smallint, env smallint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF to_regclass(format('vectors_%1$s_%2$s', encoder, env)) IS NULL THEN
    PERFORM pg_advisory_xact_lock(728902, env);
    EXECUTE format('CREATE TABLE IF NOT EXISTS vectors_%1$s_%2$s PARTITION OF vectors_%1$s FOR VALUES IN (%2$s)',
                   encoder, env);
    EXECUTE format('ALTER TABLE vectors_%1$s_%2$s ALTER COLUMN embedding SET STORAGE PLAIN', encoder, env);
  END IF;
END $$;
