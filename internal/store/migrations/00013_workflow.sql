-- +goose Up

-- Events and runs of durable functions. Times are unix nanoseconds, 0 for none;
-- detail is the rest as JSON.
CREATE TABLE workflow_events (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    owner       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    data        TEXT    NOT NULL,
    replay      TEXT    NOT NULL,
    idempotency TEXT    NOT NULL,
    created     INTEGER NOT NULL
);
CREATE UNIQUE INDEX workflow_events_idempotency ON workflow_events (owner, idempotency) WHERE idempotency <> '';
CREATE INDEX workflow_events_owner ON workflow_events (owner, seq);
CREATE INDEX workflow_events_name ON workflow_events (name, seq);

-- tick names the time that a clock started the run for.
CREATE TABLE workflow_runs (
    seq      INTEGER PRIMARY KEY,
    id       TEXT    NOT NULL UNIQUE,
    owner    TEXT    NOT NULL,
    function TEXT    NOT NULL,
    event    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    tick     TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    ended    INTEGER NOT NULL,
    detail   TEXT    NOT NULL
);
CREATE UNIQUE INDEX workflow_runs_tick ON workflow_runs (tick) WHERE tick <> '';
CREATE INDEX workflow_runs_event ON workflow_runs (event);
CREATE INDEX workflow_runs_function ON workflow_runs (function, seq);
CREATE INDEX workflow_runs_owner ON workflow_runs (owner, seq);
CREATE INDEX workflow_runs_open ON workflow_runs (seq) WHERE ended = 0;
CREATE INDEX workflow_runs_ended ON workflow_runs (ended) WHERE ended <> 0;

CREATE TABLE workflow_steps (
    run    TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    n      INTEGER NOT NULL,
    detail TEXT    NOT NULL,
    PRIMARY KEY (run, name)
);
