package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/internal/studio/studiotest"
)

func TestAppsKeepThePromises(t *testing.T) {
	studiotest.Run(t, func(t *testing.T) studiotest.Fixture {
		db := storetest.Open(t)
		return studiotest.Fixture{Store: store.Apps(db), Events: store.Events(db)}
	})
}
