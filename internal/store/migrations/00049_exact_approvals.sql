-- +goose Up

-- A decision may apply only to requests with the same query and body. The hash of a body is
-- empty in earlier approvals, which no decision of that kind remembers.
ALTER TABLE approvals ADD COLUMN exact_only INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approvals ADD COLUMN exact INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approvals ADD COLUMN body_hash TEXT NOT NULL DEFAULT '';
