-- +goose Up

-- Applications that models write.
CREATE TABLE apps (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    owner       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    created     INTEGER NOT NULL,
    used        INTEGER NOT NULL,
    idempotency TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    detail      TEXT    NOT NULL,
    bytes       INTEGER NOT NULL DEFAULT 0, -- of its contents
    UNIQUE (owner, name)
);
CREATE INDEX apps_owner ON apps (owner, seq);
CREATE UNIQUE INDEX apps_idempotency ON apps (owner, idempotency) WHERE idempotency <> '';

-- The states that an application's files have had.
CREATE TABLE app_revisions (
    app     TEXT    NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    number  INTEGER NOT NULL,
    created INTEGER NOT NULL,
    detail  TEXT    NOT NULL,
    PRIMARY KEY (app, number)
) WITHOUT ROWID;

-- A file as it was from the revision since on, up to the one before until; until is 0
-- for what the last revision has.
CREATE TABLE app_files (
    app    TEXT    NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    path   TEXT    NOT NULL,
    since  INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    size   INTEGER NOT NULL,
    mode   INTEGER NOT NULL,
    digest TEXT    NOT NULL, -- of the content, in hexadecimal
    blob   TEXT    NOT NULL, -- ID of the content in git
    PRIMARY KEY (app, path, since)
) WITHOUT ROWID;
CREATE INDEX app_files_until ON app_files (app, until);
CREATE INDEX app_files_digest ON app_files (app, digest);

-- What is in the files, for each application apart, so that nobody learns from a
-- digest that somebody else has a file.
CREATE TABLE app_contents (
    app    TEXT    NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    digest TEXT    NOT NULL,
    size   INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (app, digest)
);
