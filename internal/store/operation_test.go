package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/operation"
	"github.com/engi-dev/engi/internal/store"
)

func TestOperationsKeepThePromises(t *testing.T) {
	operationPromises(t, func(t *testing.T) operation.Store { return store.Operations(openDB(t)) })
}
