-- +goose Up

-- What applications have published. former is 0 for what is served now, and 1 for what
-- was served before.
CREATE TABLE app_published (
    app    TEXT    NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    path   TEXT    NOT NULL,
    former INTEGER NOT NULL,
    size   INTEGER NOT NULL,
    digest TEXT    NOT NULL, -- of the content, in hexadecimal
    packed TEXT    NOT NULL, -- the same of the content compressed; empty if that is not kept
    fixed  INTEGER NOT NULL, -- another content would have another path
    PRIMARY KEY (app, path, former)
) WITHOUT ROWID;

-- The contents, in parts, so that nobody who reads one has all of it in memory.
CREATE TABLE app_parts (
    app    TEXT    NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    digest TEXT    NOT NULL,
    part   INTEGER NOT NULL,
    size   INTEGER NOT NULL, -- of the whole content
    data   BLOB    NOT NULL,
    PRIMARY KEY (app, digest, part)
);
