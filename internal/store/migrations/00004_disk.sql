-- +goose Up

-- One row per snapshot. Times are unix nanoseconds, 0 for none; size and env
-- are JSON. A removed one has lost its name and is found by nobody, but keeps
-- its row until its files are gone.
CREATE TABLE snapshots (
    seq      INTEGER PRIMARY KEY,
    id       TEXT    NOT NULL UNIQUE,
    owner    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    sandbox  TEXT    NOT NULL,
    template TEXT    NOT NULL,
    digest   TEXT    NOT NULL,
    tier     TEXT    NOT NULL,
    size     TEXT    NOT NULL,
    env      TEXT    NOT NULL,
    disk     INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    used     INTEGER NOT NULL,
    expires  INTEGER NOT NULL,
    removed  INTEGER NOT NULL
);
CREATE UNIQUE INDEX snapshots_name ON snapshots (owner, name) WHERE name <> '' AND removed = 0;
CREATE INDEX snapshots_owner ON snapshots (owner);
CREATE INDEX snapshots_sandbox ON snapshots (sandbox);

-- One row per volume. Times are unix nanoseconds; ttl is a duration, 0 for
-- ever. A removed one is found by nobody, but keeps its row until its files
-- are gone.
CREATE TABLE volumes (
    seq      INTEGER PRIMARY KEY,
    id       TEXT    NOT NULL UNIQUE,
    owner    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    capacity INTEGER NOT NULL,
    used     INTEGER NOT NULL,
    holder   TEXT    NOT NULL,
    image    INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    accessed INTEGER NOT NULL,
    ttl      INTEGER NOT NULL,
    removed  INTEGER NOT NULL
);
CREATE UNIQUE INDEX volumes_name ON volumes (owner, name) WHERE removed = 0;
CREATE INDEX volumes_holder ON volumes (holder) WHERE holder <> '';
