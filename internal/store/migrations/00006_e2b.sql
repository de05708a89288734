-- +goose Up

-- E2B's templates: names with builds and tags, which are in detail as JSON.
CREATE TABLE e2b_templates (
    id      TEXT    PRIMARY KEY,
    owner   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    UNIQUE (owner, name)
) WITHOUT ROWID;

-- Lines of logs, in the order of seq.
CREATE TABLE e2b_lines (
    seq      INTEGER PRIMARY KEY,
    template TEXT    NOT NULL REFERENCES e2b_templates (id) ON DELETE CASCADE,
    build    TEXT    NOT NULL,
    time     INTEGER NOT NULL,
    level    TEXT    NOT NULL,
    step     TEXT    NOT NULL,
    text     TEXT    NOT NULL
);
CREATE INDEX e2b_lines_build ON e2b_lines (build, seq);
CREATE INDEX e2b_lines_template ON e2b_lines (template);
