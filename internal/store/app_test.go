package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestAppsKeepThePromises(t *testing.T) {
	appPromises(t, func(t *testing.T) appFixture {
		db := storetest.Open(t)
		return appFixture{Store: store.Apps(db), Events: store.Events(db)}
	})
}
