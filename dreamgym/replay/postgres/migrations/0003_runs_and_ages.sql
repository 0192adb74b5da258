-- Outcomes are told apart by the run that played them, since version 5 of one run is another policy than version 5 of
-- the next; and of two the later recorded is the newer, whatever their numbers.
ALTER TABLE task_outcomes ADD COLUMN run text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE task_outcomes ADD COLUMN recorded_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE task_outcomes DROP CONSTRAINT task_outcomes_pkey;
ALTER TABLE task_outcomes ADD PRIMARY KEY (env_id, task_id, run, policy_version);

-- So that those of groups long over can go.
ALTER TABLE watermarks ADD COLUMN asked_at timestamptz NOT NULL DEFAULT now();
