-- The approximate index (HNSW) on the vectors of recorded keys, one for each encoder and environment, if there are many
-- such keys. Its name is that of the partition and `_recorded`. An index is used only if `ef_search` says how.
CREATE TABLE vector_indexes (
  encoder_id smallint NOT NULL REFERENCES encoders ON DELETE CASCADE,
  env_id     smallint NOT NULL REFERENCES environments ON DELETE CASCADE,
  vectors    bigint NOT NULL,                            -- rows of the partition when it was last looked at
  keys       bigint NOT NULL,                            -- recorded keys among them
  ef_search  int,                                        -- candidates that a search keeps; NULL: searches are exact
  recall     real,                                       -- share of the 5 nearest keys that such a search finds
  error      text,                                       -- why there is no index
  looked_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (encoder_id, env_id)
);
