-- The part that the identical and the similar search share. The caller defines `asked` (key, state, action, cosine)
-- and the partitions {env}. The order is that of ranking.py; only rows that can no longer be chosen are cut.
, agreement AS MATERIALIZED (
  SELECT world_id, count(*) AS states
  FROM world_states_{env}
  WHERE env_id = {env} AND state = ANY (%(seen)s) AND sources & %(mask)s <> 0 AND first_at <= %(as_of)s
  GROUP BY world_id
), best_world AS (
  SELECT DISTINCT ON (transition_id)
    asked.key, asked.state, asked.action, asked.cosine, sighting.transition_id, sighting.source,
    world.name AS world, coalesce(agreement.states, 0) AS agreement, world.name <> %(world)s AS elsewhere,
    sighting.goal,
    CASE WHEN bool_or(1 << sighting.source & %(grounded)s <> 0) OVER seen
      THEN bool_or(1 << sighting.source & %(grounded)s <> 0 AND sighting.goal = %(goal)s) OVER seen
      ELSE bool_or(sighting.goal = %(goal)s) OVER seen
    END AS same_goal,
    bool_or(1 << sighting.source & %(grounded)s <> 0) OVER seen AS recorded,
    md5(%(seed)s || ':' || {drawn}) COLLATE "C" AS draw
  FROM asked
  JOIN sightings_{env} AS sighting ON sighting.env_id = {env} AND sighting.key = asked.key
  JOIN worlds AS world ON world.id = sighting.world_id
  LEFT JOIN agreement USING (world_id)
  WHERE 1 << sighting.source & %(mask)s <> 0 AND sighting.first_at <= %(as_of)s
    AND sighting.only_trajectory IS DISTINCT FROM %(exclude)s
  WINDOW seen AS (PARTITION BY sighting.transition_id)
  ORDER BY transition_id, 1 << source & %(grounded)s = 0, agreement DESC, elsewhere, draw, world, source,
    sighting.goal
), cut AS (
  SELECT *, row_number() OVER (
    PARTITION BY key ORDER BY recorded DESC, agreement DESC, elsewhere, same_goal DESC, draw, transition_id
  ) AS place
  FROM best_world
)
SELECT key, cut.state, cut.action, cosine, transition.id, outcome, body::text, world, source, agreement,
  CASE WHEN same_goal THEN %(goal)s ELSE goal END AS goal, same_goal, instruction, recorded
FROM cut
JOIN transitions_{env} AS transition ON transition.env_id = {env} AND transition.id = transition_id
JOIN goals ON goals.env_id = {env} AND goals.id = CASE WHEN same_goal THEN %(goal)s ELSE goal END
WHERE place <= %(cut)s OR same_goal
