-- +goose Up

-- Workspaces: files with revisions, services, and who works on them.
CREATE TABLE workspaces (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    owner       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    created     INTEGER NOT NULL,
    used        INTEGER NOT NULL,
    idempotency TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    detail      TEXT    NOT NULL,
    bytes       INTEGER NOT NULL DEFAULT 0, -- of its history
    UNIQUE (owner, name)
);
CREATE INDEX workspaces_owner ON workspaces (owner, seq);
CREATE INDEX workspaces_name ON workspaces (name);
CREATE UNIQUE INDEX workspaces_idempotency ON workspaces (owner, idempotency) WHERE idempotency <> '';

-- Who works on what somebody else owns, to find it by; the record has the roles.
CREATE TABLE workspace_collaborators (
    owner     TEXT NOT NULL,
    workspace TEXT NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    PRIMARY KEY (owner, workspace)
) WITHOUT ROWID;
CREATE INDEX workspace_collaborators_workspace ON workspace_collaborators (workspace);

-- The states that a workspace's files have had. Each is a commit of git.
CREATE TABLE workspace_revisions (
    workspace TEXT    NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    created   INTEGER NOT NULL,
    detail    TEXT    NOT NULL,
    PRIMARY KEY (workspace, number)
) WITHOUT ROWID;

-- Which revisions have changed a path.
CREATE TABLE workspace_changes (
    workspace TEXT    NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    path      TEXT    NOT NULL,
    PRIMARY KEY (workspace, path, number)
) WITHOUT ROWID;

-- Objects of git, for each workspace apart, so that nobody learns from a hash that
-- somebody else has a file.
CREATE TABLE workspace_objects (
    workspace TEXT    NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    hash      TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    size      INTEGER NOT NULL, -- of the content
    data      BLOB    NOT NULL, -- the content, compressed with zlib
    PRIMARY KEY (workspace, hash)
);
