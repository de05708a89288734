-- +goose Up

-- Executions name their sandboxes, so that claims need not write this index.
DROP INDEX sandboxes_execution;
