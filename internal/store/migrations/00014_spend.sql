-- +goose Up

-- What owners spent on language models. Days are counted from 1970 in UTC,
-- costs in millionths.
CREATE TABLE spend (
    owner       TEXT    NOT NULL,
    day         INTEGER NOT NULL,
    model       TEXT    NOT NULL,
    calls       INTEGER NOT NULL,
    input       INTEGER NOT NULL,
    output      INTEGER NOT NULL,
    reasoning   INTEGER NOT NULL,
    cache_read  INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    cost        INTEGER NOT NULL,
    PRIMARY KEY (owner, day, model)
) WITHOUT ROWID;
