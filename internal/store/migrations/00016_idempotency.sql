-- +goose Up

-- Requests with an Idempotency-Key, and the IDs of what they made.
CREATE TABLE idempotency (
    owner       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    ids         TEXT    NOT NULL, -- with spaces between
    done        INTEGER NOT NULL,
    created     INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
) WITHOUT ROWID;

CREATE INDEX idempotency_created ON idempotency (created);
