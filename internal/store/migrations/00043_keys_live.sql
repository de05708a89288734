-- +goose Up

-- Keys that may still be used: those of an owner, and those of administrators.
CREATE INDEX keys_live ON keys (owner) WHERE revoked = 0;
CREATE INDEX keys_admin ON keys (admin) WHERE admin = 1 AND revoked = 0;
