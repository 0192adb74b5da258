-- Watermarks: a group of episodes sees nothing that was stored after its first one began. What retrieval reads says at
-- which trajectory's position it was first stored; what was there before this migration, at 0.

ALTER TABLE sightings ADD COLUMN first_at bigint NOT NULL DEFAULT 0;
ALTER TABLE world_states ADD COLUMN first_at bigint NOT NULL DEFAULT 0;
ALTER TABLE world_states DROP CONSTRAINT world_states_pkey;
ALTER TABLE world_states ADD PRIMARY KEY (env_id, state, world_id) INCLUDE (sources, first_at);

DO $$
DECLARE encoder smallint;
BEGIN
  FOR encoder IN SELECT id FROM encoders LOOP
    EXECUTE format('ALTER TABLE vectors_%s ADD COLUMN first_at bigint NOT NULL DEFAULT 0', encoder);
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION ensure_encoder_table(encoder smallint, dim int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TABLE IF NOT EXISTS vectors_%1$s (env_id smallint NOT NULL, key uuid NOT NULL, '
                 'sources smallint NOT NULL, state text NOT NULL, action text NOT NULL, '
                 'embedding halfvec(%2$s) NOT NULL, first_at bigint NOT NULL DEFAULT 0, '
                 'PRIMARY KEY (env_id, key)) PARTITION BY LIST (env_id)',
                 encoder, dim);
END $$;

CREATE TABLE watermarks (
  env_id   smallint NOT NULL REFERENCES environments,
  name     text COLLATE "C" NOT NULL,
  position bigint NOT NULL,
  PRIMARY KEY (env_id, name)
);

-- What models predicted, by everything that the prediction depends on. The first answer to a question stays.
CREATE TABLE predictions (
  key     bytea PRIMARY KEY,
  body    text NOT NULL,
  made_at timestamptz NOT NULL DEFAULT now()
);
