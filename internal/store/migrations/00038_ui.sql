-- +goose Up

-- The pages of sessions: html is the page after the event seq. What has changed it
-- since then is in the log of events.
CREATE TABLE uis (
    session TEXT    PRIMARY KEY,
    owner   TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    first   INTEGER NOT NULL, -- event about the page; 0 for none
    busy    INTEGER NOT NULL, -- actions wait, or are being answered, or modules are to be saved
    updated INTEGER NOT NULL,
    detail  TEXT    NOT NULL,
    html    TEXT    NOT NULL
);

CREATE INDEX uis_busy ON uis (session) WHERE busy = 1;

-- A page goes with its session.
-- +goose StatementBegin
CREATE TRIGGER session_ended AFTER UPDATE OF ended ON sessions WHEN OLD.ended = 0 AND NEW.ended <> 0 BEGIN
    DELETE FROM uis WHERE session = NEW.id;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER session_forgotten AFTER DELETE ON sessions BEGIN
    DELETE FROM uis WHERE session = OLD.id;
END;
-- +goose StatementEnd
