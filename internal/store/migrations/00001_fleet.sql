-- +goose Up

-- One row per execution. Times are unix nanoseconds, 0 for none. seq is the
-- order of creation; detail is the JSON of fleetDetail in ../fleet.go.
CREATE TABLE executions (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    owner       TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    language    TEXT    NOT NULL,
    template    TEXT    NOT NULL,
    sandbox     TEXT    NOT NULL,
    created     INTEGER NOT NULL,
    started     INTEGER NOT NULL,
    ended       INTEGER NOT NULL,
    idempotency TEXT,
    fingerprint TEXT    NOT NULL,
    tape_file   INTEGER NOT NULL,
    detail      TEXT    NOT NULL,
    tape        BLOB
);
CREATE UNIQUE INDEX executions_repeated ON executions (owner, idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX executions_owner ON executions (owner);
CREATE INDEX executions_live ON executions (state) WHERE state IN ('queued', 'running');
CREATE INDEX executions_ended ON executions (ended) WHERE ended > 0;

-- One row per sandbox that became ready, until its execution is forgotten.
CREATE TABLE sandboxes (
    seq       INTEGER PRIMARY KEY,
    id        TEXT    NOT NULL UNIQUE,
    owner     TEXT    NOT NULL,
    template  TEXT    NOT NULL,
    digest    TEXT    NOT NULL,
    pool      TEXT    NOT NULL,
    tier      TEXT    NOT NULL,
    size      TEXT    NOT NULL,
    state     TEXT    NOT NULL,
    cause     TEXT    NOT NULL,
    execution TEXT    NOT NULL,
    token     TEXT    NOT NULL,
    language  TEXT    NOT NULL,
    fixed     TEXT    NOT NULL,
    created   INTEGER NOT NULL,
    stopped   INTEGER NOT NULL
);
CREATE INDEX sandboxes_live ON sandboxes (state) WHERE state <> 'stopped';
CREATE INDEX sandboxes_execution ON sandboxes (execution) WHERE execution <> '';
