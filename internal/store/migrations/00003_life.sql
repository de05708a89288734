-- +goose Up

-- Sandboxes that live for their owners. made tells them from those of pools
-- and executions; detail is the JSON of lifeDetail in ../life.go, empty for
-- the others. Its values may be secret.
ALTER TABLE sandboxes ADD COLUMN made INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN idempotency TEXT;
ALTER TABLE sandboxes ADD COLUMN detail TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX sandboxes_repeated ON sandboxes (owner, idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX sandboxes_made ON sandboxes (owner, created) WHERE made = 1;
