-- +goose Up

-- Work in a workspace that is created, reviewed, revised, and approved or rejected.
CREATE TABLE workflows (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT    NOT NULL UNIQUE,
    owner     TEXT    NOT NULL,
    workspace TEXT    NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    name      TEXT    NOT NULL,
    stage     TEXT    NOT NULL,
    deadline  INTEGER NOT NULL, -- 0 for none
    detail    TEXT    NOT NULL,
    UNIQUE (workspace, name)
);
CREATE INDEX workflows_owner ON workflows (owner, seq);
CREATE INDEX workflows_workspace ON workflows (workspace, seq);
CREATE INDEX workflows_deadline ON workflows (deadline) WHERE deadline > 0;

-- Histories of workflows. Rows are only added.
CREATE TABLE workflow_events (
    workflow TEXT    NOT NULL REFERENCES workflows (id) ON DELETE CASCADE,
    number   INTEGER NOT NULL,
    action   TEXT    NOT NULL,
    actor    TEXT    NOT NULL,
    hash     TEXT    NOT NULL,
    detail   TEXT    NOT NULL,
    PRIMARY KEY (workflow, number)
) WITHOUT ROWID;
CREATE INDEX workflow_events_submitted ON workflow_events (workflow, hash) WHERE action = 'submit';

-- The hash of all files of a revision. It is empty in revisions of earlier versions until it is needed.
ALTER TABLE workspace_revisions ADD COLUMN tree TEXT NOT NULL DEFAULT '';
CREATE INDEX workspace_revisions_tree ON workspace_revisions (workspace, tree);
