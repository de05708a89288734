-- +goose Up

-- How far the decisions of the egress gateway on one sandbox are counted: the numbers
-- go on when old ones are forgotten.
CREATE TABLE network_logs (
    sandbox TEXT    PRIMARY KEY,
    last    INTEGER NOT NULL
) WITHOUT ROWID;

-- One row per decision. time is unix nanoseconds, address is IP:PORT or empty.
CREATE TABLE network_events (
    sandbox  TEXT    NOT NULL,
    seq      INTEGER NOT NULL,
    time     INTEGER NOT NULL,
    owner    TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    allowed  INTEGER NOT NULL,
    protocol TEXT    NOT NULL,
    host     TEXT    NOT NULL,
    address  TEXT    NOT NULL,
    rule     TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    up       INTEGER NOT NULL,
    down     INTEGER NOT NULL,
    PRIMARY KEY (sandbox, seq)
) WITHOUT ROWID;
CREATE INDEX network_events_time ON network_events (time);

-- Whoever forgets a sandbox forgets what it asked for.
-- +goose StatementBegin
CREATE TRIGGER network_forget AFTER DELETE ON sandboxes BEGIN
    DELETE FROM network_events WHERE sandbox = OLD.id;
    DELETE FROM network_logs WHERE sandbox = OLD.id;
END;
-- +goose StatementEnd
