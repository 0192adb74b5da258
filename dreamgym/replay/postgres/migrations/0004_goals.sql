-- For which goal a transition was seen: its reward and its end say nothing of tasks with another goal. The text of a goal
-- is that of Task.goal, its id that of keys.goal_id.

CREATE TABLE goals (
  env_id      smallint NOT NULL REFERENCES environments,
  id          uuid NOT NULL,
  instruction text NOT NULL,
  PRIMARY KEY (env_id, id)
);

ALTER TABLE trajectories ADD COLUMN goal uuid;
CREATE TEMP TABLE goal_of ON COMMIT DROP AS
SELECT trajectory.id, env_id, instruction,
  encode(substring(sha256(convert_to(
    CASE WHEN btrim(instruction, E' \t\n\r\f\v') = ''
      THEN E'\n' || coalesce(body -> 'task' -> 'metadata' ->> 'world', body -> 'task' ->> 'id')
      ELSE concat_ws(E'\n', instruction, (body -> 'task' -> 'metadata' -> 'success')::text)
    END, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid AS goal
FROM trajectories AS trajectory CROSS JOIN LATERAL (SELECT body -> 'task' ->> 'instruction') AS told (instruction);
UPDATE trajectories SET goal = goal_of.goal FROM goal_of WHERE goal_of.id = trajectories.id;
ALTER TABLE trajectories ALTER COLUMN goal SET NOT NULL;
INSERT INTO goals SELECT DISTINCT ON (env_id, goal) env_id, goal, instruction FROM goal_of ORDER BY env_id, goal, id;

-- every sighting is made anew, once for each goal
CREATE TEMP TABLE seen ON COMMIT DROP AS
SELECT step.env_id, transition_id, world_id, source, goal,
  CASE WHEN count(DISTINCT trajectory.id) = 1 THEN min(trajectory.id) END AS only_trajectory
FROM trajectory_steps AS step JOIN trajectories AS trajectory ON trajectory.id = trajectory_id
GROUP BY step.env_id, transition_id, world_id, source, goal;
CREATE TEMP TABLE sighted ON COMMIT DROP AS SELECT * FROM sightings;
DELETE FROM sightings;
ALTER TABLE sightings DROP CONSTRAINT sightings_pkey;
ALTER TABLE sightings ADD COLUMN goal uuid NOT NULL;
ALTER TABLE sightings ADD PRIMARY KEY (env_id, key, transition_id, world_id, source, goal);
INSERT INTO sightings (env_id, key, transition_id, world_id, source, only_trajectory, first_at, goal)
SELECT old.env_id, key, transition_id, world_id, source, seen.only_trajectory, first_at, goal
FROM sighted AS old JOIN seen USING (env_id, transition_id, world_id, source);

-- The episodes of one update of a run are asked for after each update.
CREATE INDEX episodes_group ON episodes (((body ->> 'group') COLLATE "C"));
