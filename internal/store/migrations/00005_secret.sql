-- +goose Up

-- One row per secret. value is encrypted by package gate/secret under the key
-- whose fingerprint is in key; times are unix nanoseconds, metadata is JSON.
CREATE TABLE secrets (
    id       TEXT    NOT NULL PRIMARY KEY,
    owner    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    metadata TEXT    NOT NULL,
    created  INTEGER NOT NULL,
    updated  INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    value    BLOB    NOT NULL,
    UNIQUE (owner, name)
);
CREATE INDEX secrets_name ON secrets (name, owner);
