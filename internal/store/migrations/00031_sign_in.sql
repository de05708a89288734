-- +goose Up

-- Browsers that are signed in.
CREATE TABLE sign_ins (
    hash    BLOB    PRIMARY KEY, -- of the token in the browser's cookie
    key     TEXT    NOT NULL,    -- ID of the key that it uses
    sealed  BLOB    NOT NULL,    -- the key's secret, encrypted with the token
    expires INTEGER NOT NULL
);

CREATE INDEX sign_ins_key ON sign_ins (key, expires);
