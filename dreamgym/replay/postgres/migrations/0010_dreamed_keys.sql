-- A key that was only dreamed has no vector until a question searches among dreams. An index finds those without.

CREATE OR REPLACE FUNCTION ensure_encoder_table(encoder smallint, dim int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TABLE IF NOT EXISTS vectors_%1$s (env_id smallint NOT NULL, key uuid NOT NULL, '
                 'sources smallint NOT NULL, state text NOT NULL, action text NOT NULL, '
                 'embedding halfvec(%2$s), first_at bigint NOT NULL DEFAULT 0, '
                 'PRIMARY KEY (env_id, key)) PARTITION BY LIST (env_id)',
                 encoder, dim);
  EXECUTE format('CREATE INDEX IF NOT EXISTS vectors_%1$s_missing ON vectors_%1$s (key) WHERE embedding IS NULL',
                 encoder);
END $$;

DO $$
DECLARE encoder smallint;
BEGIN
  FOR encoder IN SELECT id FROM encoders LOOP
    EXECUTE format('ALTER TABLE vectors_%s ALTER COLUMN embedding DROP NOT NULL', encoder);
    EXECUTE format('CREATE INDEX vectors_%1$s_missing ON vectors_%1$s (key) WHERE embedding IS NULL', encoder);
  END LOOP;
END $$;
