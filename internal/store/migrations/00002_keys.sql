-- +goose Up

-- One row per API key that was ever made. Times are unix nanoseconds, 0 for
-- none; hash is the SHA-256 of the secret, which is kept nowhere.
CREATE TABLE keys (
    seq     INTEGER PRIMARY KEY,
    id      TEXT    NOT NULL UNIQUE,
    hash    BLOB    NOT NULL UNIQUE,
    owner   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    admin   INTEGER NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    revoked INTEGER NOT NULL
);
CREATE INDEX keys_owner ON keys (owner);
