-- +goose Up

-- Work that lasts longer than a request.
CREATE TABLE operations (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    id      TEXT    NOT NULL UNIQUE,
    owner   TEXT    NOT NULL,
    type    TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    state   TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    created INTEGER NOT NULL,
    ended   INTEGER NOT NULL, -- 0 while it goes on
    error   TEXT    NOT NULL, -- JSON; empty for none
    input   TEXT    NOT NULL  -- JSON
);

CREATE INDEX operations_owner ON operations (owner, seq);
CREATE INDEX operations_ended ON operations (ended, seq);
