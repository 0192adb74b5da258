-- Which folder an environment is stored from, since two folders may have one name; NULL until a folder is stored, and
-- for what was there before this migration. The folder is where it lay last, for messages.
ALTER TABLE environments ADD COLUMN identity text, ADD COLUMN folder text;
