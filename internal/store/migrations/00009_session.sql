-- +goose Up

-- One row per session: the registry of which volume and which sandbox it has,
-- and when it was last used. Times are unix nanoseconds, 0 for none; detail is
-- the rest as JSON. One that is over has lost its name, and keeps its row until
-- it is forgotten.
CREATE TABLE sessions (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    owner       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    volume      TEXT    NOT NULL,
    sandbox     TEXT    NOT NULL,
    created     INTEGER NOT NULL,
    used        INTEGER NOT NULL,
    ended       INTEGER NOT NULL,
    idempotency TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    detail      TEXT    NOT NULL
);
CREATE UNIQUE INDEX sessions_name ON sessions (owner, name) WHERE name <> '' AND ended = 0;
CREATE UNIQUE INDEX sessions_idempotency ON sessions (owner, idempotency) WHERE idempotency <> '';
CREATE INDEX sessions_used ON sessions (used) WHERE ended = 0;
