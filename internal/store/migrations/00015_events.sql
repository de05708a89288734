-- +goose Up

-- The log of what has happened. seq is the order of the commits, and never
-- reused, since the newest event is never dropped; prev is the seq of the event
-- before it about the same subject, 0 for the first, so that of two appends that
-- expect the same one fails.
CREATE TABLE events (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    owner       TEXT    NOT NULL,
    subject     TEXT    NOT NULL,
    prev        INTEGER NOT NULL,
    type        TEXT    NOT NULL,
    time        INTEGER NOT NULL,
    actor       TEXT    NOT NULL,
    replay      TEXT    NOT NULL,
    idempotency TEXT    NOT NULL,
    data        TEXT    NOT NULL
);
CREATE UNIQUE INDEX events_subject ON events (subject, prev);
CREATE UNIQUE INDEX events_idempotency ON events (owner, idempotency) WHERE idempotency <> '';
CREATE INDEX events_owner ON events (owner, seq);

-- How much of the log each owner has up to seq, and what was dropped of it.
CREATE TABLE event_totals (
    owner   TEXT    PRIMARY KEY,
    seq     INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    bytes   INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    through INTEGER NOT NULL
) WITHOUT ROWID;

-- How far those have read who must not miss an event.
CREATE TABLE event_cursors (
    name TEXT    PRIMARY KEY,
    seq  INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO events (id, owner, subject, prev, type, time, actor, replay, idempotency, data)
SELECT id, owner, id, 0, name, created, '', replay, idempotency, data FROM workflow_events ORDER BY seq;
DROP TABLE workflow_events;
