-- +goose Up

-- Runs of agents. Times are unix nanoseconds, 0 for none; detail is the rest
-- as JSON.
CREATE TABLE agent_runs (
    seq          INTEGER PRIMARY KEY,
    id           TEXT    NOT NULL UNIQUE,
    owner        TEXT    NOT NULL,
    conversation TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    created      INTEGER NOT NULL,
    ended        INTEGER NOT NULL,
    idempotency  TEXT    NOT NULL,
    detail       TEXT    NOT NULL
);
CREATE UNIQUE INDEX agent_runs_idempotency ON agent_runs (owner, idempotency) WHERE idempotency <> '';
CREATE INDEX agent_runs_conversation ON agent_runs (conversation);
CREATE INDEX agent_runs_running ON agent_runs (state) WHERE state = 'running';
CREATE INDEX agent_runs_ended ON agent_runs (ended) WHERE ended <> 0;

CREATE TABLE agent_messages (
    run     TEXT    NOT NULL,
    n       INTEGER NOT NULL,
    message TEXT    NOT NULL,
    PRIMARY KEY (run, n)
) WITHOUT ROWID;

CREATE TABLE agent_results (
    run  TEXT NOT NULL,
    call TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, call)
);

