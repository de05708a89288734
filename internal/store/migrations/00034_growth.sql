-- +goose Up

-- What one record or one page of a list costs must not depend on how many there are.
CREATE INDEX snapshots_named ON snapshots (name, owner);
CREATE INDEX volumes_named ON volumes (name, owner);
CREATE INDEX sessions_named ON sessions (name, owner);
CREATE INDEX agent_runs_owner ON agent_runs (owner, seq);
CREATE INDEX sandboxes_stopped ON sandboxes (created DESC, id) WHERE state = 'stopped';
CREATE INDEX sandboxes_stopped_owner ON sandboxes (owner, created DESC, id) WHERE state = 'stopped';

-- How much is on each shelf, which every new document asks.
CREATE TABLE library_totals (
    shelf TEXT    PRIMARY KEY,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO library_totals SELECT shelf, count(*), sum(bytes) FROM library_records GROUP BY shelf;
-- +goose StatementBegin
CREATE TRIGGER library_added AFTER INSERT ON library_records BEGIN
    INSERT INTO library_totals VALUES (NEW.shelf, 1, NEW.bytes)
        ON CONFLICT (shelf) DO UPDATE SET count = count + 1, bytes = bytes + NEW.bytes;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER library_changed AFTER UPDATE OF bytes ON library_records BEGIN
    UPDATE library_totals SET bytes = bytes - OLD.bytes + NEW.bytes WHERE shelf = NEW.shelf;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER library_removed AFTER DELETE ON library_records BEGIN
    UPDATE library_totals SET count = count - 1, bytes = bytes - OLD.bytes WHERE shelf = OLD.shelf;
    DELETE FROM library_totals WHERE shelf = OLD.shelf AND count = 0;
END;
-- +goose StatementEnd
