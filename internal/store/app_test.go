package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/app/apptest"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestAppsKeepThePromises(t *testing.T) {
	apptest.Run(t, func(t *testing.T) apptest.Fixture {
		db := storetest.Open(t)
		return apptest.Fixture{Store: store.Apps(db), Events: store.Events(db)}
	})
}
