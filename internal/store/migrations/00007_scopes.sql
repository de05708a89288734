-- +goose Up

-- What a key is for: names with spaces between, empty for everything but
-- administration.
ALTER TABLE keys ADD COLUMN scopes TEXT NOT NULL DEFAULT '';
