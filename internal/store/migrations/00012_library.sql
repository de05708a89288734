-- +goose Up

-- Documents and modules. A shelf says who finds what is on it. Times are unix
-- nanoseconds, 0 for none; detail is the rest as JSON.
CREATE TABLE library_records (
    seq     INTEGER PRIMARY KEY,
    id      TEXT    NOT NULL UNIQUE,
    shelf   TEXT    NOT NULL,
    package TEXT    NOT NULL,
    place   TEXT    NOT NULL,
    title   TEXT    NOT NULL,
    bytes   INTEGER NOT NULL,
    module  INTEGER NOT NULL,
    detail  TEXT    NOT NULL,
    UNIQUE (shelf, package, place)
);

-- What is found of them. The vector is of 32-bit floats, little endian.
CREATE TABLE library_pieces (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    record   INTEGER NOT NULL REFERENCES library_records (seq) ON DELETE CASCADE,
    hash     TEXT    NOT NULL,
    headings TEXT    NOT NULL,
    anchor   TEXT    NOT NULL,
    body     TEXT    NOT NULL,
    embedder TEXT    NOT NULL,
    vector   BLOB
);
CREATE INDEX library_pieces_record ON library_pieces (record);

-- Their words. It has no copy of the text: rows are those of library_pieces by
-- ID. The column places has one word for the shelf, its kind and each package,
-- so that a query looks only at what its caller may see.
CREATE VIRTUAL TABLE library_words USING fts5 (
    headings, body, names, places,
    content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 2'
);
