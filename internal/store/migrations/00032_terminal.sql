-- +goose Up

-- Terminals of sessions and sandboxes. What they show is in the sandbox.
CREATE TABLE terminals (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    id      TEXT    NOT NULL UNIQUE,
    owner   TEXT    NOT NULL,
    session TEXT    NOT NULL, -- empty if the sandbox is no session's
    sandbox TEXT    NOT NULL,
    program TEXT    NOT NULL,
    cols    INTEGER NOT NULL,
    rows    INTEGER NOT NULL,
    created INTEGER NOT NULL
);

CREATE INDEX terminals_owner ON terminals (owner, seq);
CREATE INDEX terminals_session ON terminals (session, seq);
CREATE INDEX terminals_sandbox ON terminals (sandbox, seq);

-- Links to terminals, by the SHA-256 of their secrets.
CREATE TABLE terminal_links (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT    NOT NULL UNIQUE,
    terminal TEXT    NOT NULL REFERENCES terminals (id) ON DELETE CASCADE,
    owner    TEXT    NOT NULL,
    hash     BLOB    NOT NULL UNIQUE,
    name     TEXT    NOT NULL,
    write    INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    expires  INTEGER NOT NULL
);

CREATE INDEX terminal_links_terminal ON terminal_links (terminal, seq);
