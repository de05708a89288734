-- +goose Up

-- How many volumes, snapshots and secrets an owner has, and what they may take of the
-- disk: volumes their capacity, and snapshots their files until those are deleted.
CREATE TABLE owner_totals (
    noun  TEXT    NOT NULL,
    owner TEXT    NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (noun, owner)
) WITHOUT ROWID;
INSERT INTO owner_totals SELECT 'volume', owner, count(*), sum(capacity) FROM volumes WHERE removed = 0 GROUP BY owner;
INSERT INTO owner_totals SELECT 'snapshot', owner, sum(removed = 0), sum(bytes) FROM snapshots GROUP BY owner;
INSERT INTO owner_totals SELECT 'secret', owner, count(*), 0 FROM secrets GROUP BY owner;
-- +goose StatementBegin
CREATE TRIGGER volume_added AFTER INSERT ON volumes WHEN NEW.removed = 0 BEGIN
    INSERT INTO owner_totals VALUES ('volume', NEW.owner, 1, NEW.capacity)
        ON CONFLICT DO UPDATE SET count = count + 1, bytes = bytes + NEW.capacity;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER volume_removed AFTER UPDATE OF removed ON volumes WHEN OLD.removed = 0 AND NEW.removed = 1 BEGIN
    UPDATE owner_totals SET count = count - 1, bytes = bytes - OLD.capacity WHERE noun = 'volume' AND owner = OLD.owner;
    DELETE FROM owner_totals WHERE noun = 'volume' AND owner = OLD.owner AND count = 0;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER snapshot_added AFTER INSERT ON snapshots BEGIN
    INSERT INTO owner_totals VALUES ('snapshot', NEW.owner, 1, NEW.bytes)
        ON CONFLICT DO UPDATE SET count = count + 1, bytes = bytes + NEW.bytes;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER snapshot_removed AFTER UPDATE OF removed ON snapshots WHEN OLD.removed = 0 AND NEW.removed = 1 BEGIN
    UPDATE owner_totals SET count = count - 1 WHERE noun = 'snapshot' AND owner = OLD.owner;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER snapshot_forgotten AFTER DELETE ON snapshots BEGIN
    UPDATE owner_totals SET bytes = bytes - OLD.bytes WHERE noun = 'snapshot' AND owner = OLD.owner;
    DELETE FROM owner_totals WHERE noun = 'snapshot' AND owner = OLD.owner AND count = 0 AND bytes = 0;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER secret_added AFTER INSERT ON secrets BEGIN
    INSERT INTO owner_totals VALUES ('secret', NEW.owner, 1, 0)
        ON CONFLICT DO UPDATE SET count = count + 1;
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER secret_removed AFTER DELETE ON secrets BEGIN
    UPDATE owner_totals SET count = count - 1 WHERE noun = 'secret' AND owner = OLD.owner;
    DELETE FROM owner_totals WHERE noun = 'secret' AND owner = OLD.owner AND count = 0;
END;
-- +goose StatementEnd

-- What the node looks for every few seconds must not depend on how many there are.
CREATE INDEX volumes_expiring ON volumes (accessed + ttl) WHERE ttl > 0 AND removed = 0;
CREATE INDEX volumes_removed ON volumes (seq) WHERE removed = 1;
CREATE INDEX snapshots_expiring ON snapshots (expires) WHERE expires > 0 AND removed = 0;
CREATE INDEX snapshots_removed ON snapshots (seq) WHERE removed = 1;
