-- +goose Up

-- Held requests, and what was decided.
CREATE TABLE approvals (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    owner         TEXT    NOT NULL,
    sandbox       TEXT    NOT NULL,
    host          TEXT    NOT NULL,
    port          INTEGER NOT NULL,
    method        TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    secrets       TEXT    NOT NULL, -- JSON: names
    rule          TEXT    NOT NULL,
    body          BLOB    NOT NULL, -- the first bytes
    body_size     INTEGER NOT NULL,
    digest        TEXT    NOT NULL,
    maker         TEXT    NOT NULL,
    state         TEXT    NOT NULL,
    created       INTEGER NOT NULL,
    expires       INTEGER NOT NULL,
    ended         INTEGER NOT NULL, -- 0 while it is pending
    decider       TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    until         INTEGER NOT NULL, -- the decision is remembered; 0 if it is not
    all_sandboxes INTEGER NOT NULL,
    whole_rule    INTEGER NOT NULL,
    record        BLOB    NOT NULL, -- signed; empty if nobody has decided
    signature     BLOB    NOT NULL,
    public_key    BLOB    NOT NULL
);

CREATE INDEX approvals_owner ON approvals (owner, seq);
CREATE INDEX approvals_ended ON approvals (ended);
CREATE INDEX approvals_pending ON approvals (seq) WHERE ended = 0;
CREATE INDEX approvals_until ON approvals (until) WHERE until > 0;
