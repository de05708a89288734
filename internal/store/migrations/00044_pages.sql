-- +goose Up

-- Events about pages of sessions are called page, as pages are everywhere else. The
-- total of what an owner has in the log counts the length of types.
UPDATE event_totals SET bytes = bytes + 2 * (
    SELECT count(*) FROM events e
    WHERE e.owner = event_totals.owner AND e.type LIKE 'ui.%' AND e.seq <= (SELECT max(seq) FROM event_totals)
);
UPDATE events SET type = 'page' || substr(type, 3) WHERE type LIKE 'ui.%';
UPDATE events SET idempotency = 'page' || substr(idempotency, 3) WHERE substr(idempotency, 1, 3) = 'ui' || char(31);
UPDATE webhooks SET types = replace(types, '"ui.', '"page.');
