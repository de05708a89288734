-- +goose Up

-- What the log of events says of templates. The templates are directories.
CREATE TABLE templates (
    name   TEXT PRIMARY KEY,
    owner  TEXT NOT NULL,
    digest TEXT NOT NULL
);
