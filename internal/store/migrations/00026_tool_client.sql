-- +goose Up

-- The sessions of programs that use this node's tools (MCP).
CREATE TABLE tool_clients (
    id      TEXT    PRIMARY KEY,
    key     TEXT    NOT NULL, -- ID of the key that opened it
    about   BLOB    NOT NULL,
    used    INTEGER NOT NULL
);

CREATE INDEX tool_clients_key ON tool_clients (key);
CREATE INDEX tool_clients_used ON tool_clients (used);

-- What was asked last in each, and what was answered.
CREATE TABLE tool_requests (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    client  TEXT    NOT NULL REFERENCES tool_clients (id) ON DELETE CASCADE,
    stream  TEXT    NOT NULL,
    run     TEXT    NOT NULL,
    body    BLOB    NOT NULL, -- sealed if the store seals
    answers TEXT    NOT NULL, -- so is each; one in a line, in base64
    UNIQUE (client, stream)
);

CREATE INDEX tool_requests_client ON tool_requests (client, seq);
