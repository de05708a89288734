-- +goose Up

-- Public keys that let owners in over SSH.
CREATE TABLE ssh_keys (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    owner       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    public_key  TEXT    NOT NULL, -- type and base64
    fingerprint TEXT    NOT NULL UNIQUE,
    created     INTEGER NOT NULL,
    used        INTEGER NOT NULL -- 0 means never
);

CREATE INDEX ssh_keys_owner ON ssh_keys (owner);
