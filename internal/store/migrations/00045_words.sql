-- +goose Up

-- Tables have the names that everything else has: docs, functions and pages. The
-- triggers and indexes of a renamed table keep their names, so they are made again.
ALTER TABLE library_records RENAME TO docs;
ALTER TABLE library_pieces RENAME TO docs_pieces;
ALTER TABLE library_words RENAME TO docs_words;
ALTER TABLE library_totals RENAME TO docs_totals;
ALTER TABLE workflow_runs RENAME TO function_runs;
ALTER TABLE workflow_steps RENAME TO function_steps;
ALTER TABLE uis RENAME TO pages;

DROP INDEX library_pieces_record;
DROP INDEX library_records_titles;
DROP INDEX library_records_shelf;
DROP INDEX workflow_runs_tick;
DROP INDEX workflow_runs_event;
DROP INDEX workflow_runs_function;
DROP INDEX workflow_runs_owner;
DROP INDEX workflow_runs_open;
DROP INDEX workflow_runs_ended;
DROP INDEX uis_busy;
CREATE INDEX docs_pieces_record ON docs_pieces (record);
CREATE INDEX docs_titles ON docs (package, title, seq);
CREATE INDEX docs_shelf ON docs (shelf, package, title, seq);
CREATE UNIQUE INDEX function_runs_tick ON function_runs (tick) WHERE tick <> '';
CREATE INDEX function_runs_event ON function_runs (event);
CREATE INDEX function_runs_function ON function_runs (function, seq);
CREATE INDEX function_runs_owner ON function_runs (owner, seq);
CREATE INDEX function_runs_open ON function_runs (seq) WHERE ended = 0;
CREATE INDEX function_runs_ended ON function_runs (ended) WHERE ended <> 0;
CREATE INDEX pages_busy ON pages (session) WHERE busy = 1;

DROP TRIGGER library_added;
DROP TRIGGER library_changed;
DROP TRIGGER library_removed;
-- +goose StatementBegin
CREATE TRIGGER docs_added AFTER INSERT ON docs BEGIN
    INSERT INTO docs_totals VALUES (NEW.shelf, 1, NEW.bytes)
        ON CONFLICT (shelf) DO UPDATE SET count = count + 1, bytes = bytes + NEW.bytes;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER docs_changed AFTER UPDATE OF bytes ON docs BEGIN
    UPDATE docs_totals SET bytes = bytes - OLD.bytes + NEW.bytes WHERE shelf = NEW.shelf;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER docs_removed AFTER DELETE ON docs BEGIN
    UPDATE docs_totals SET count = count - 1, bytes = bytes - OLD.bytes WHERE shelf = OLD.shelf;
    DELETE FROM docs_totals WHERE shelf = OLD.shelf AND count = 0;
END;
-- +goose StatementEnd
