-- +goose Up

-- The hosts that a secret may be sent to, with spaces between; empty for those
-- that grants name.
ALTER TABLE secrets ADD COLUMN hosts TEXT NOT NULL DEFAULT '';
