-- +goose Up

-- What a page of documents costs must not depend on how many there are.
CREATE INDEX library_records_titles ON library_records (package, title, seq);
CREATE INDEX library_records_shelf ON library_records (shelf, package, title, seq);
