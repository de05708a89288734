-- +goose Up

-- Where events are sent.
CREATE TABLE webhooks (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    id      TEXT    NOT NULL UNIQUE,
    owner   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    url     TEXT    NOT NULL,
    types   TEXT    NOT NULL, -- JSON
    format  TEXT    NOT NULL,
    secret  BLOB    NOT NULL, -- encrypted
    enabled INTEGER NOT NULL,
    reason  TEXT    NOT NULL, -- why the node has disabled it
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
);
