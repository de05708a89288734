-- +goose Up

-- Fingerprints of requests are computed in another way, so those of earlier requests match no
-- repeated request any more. The empty fingerprint matches any.
UPDATE apps SET fingerprint = '';
UPDATE workspaces SET fingerprint = '';
UPDATE agent_runs SET detail = json_set(detail, '$.fingerprint', '') WHERE idempotency <> '';
