-- +goose Up

-- The fingerprint of the request that appended an event with an idempotency key; empty if it
-- is not known.
ALTER TABLE events ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
