package store_test

import (
	"testing"

	"github.com/engi-dev/engi/store"
	"github.com/engi-dev/engi/store/storetest"
	"github.com/engi-dev/engi/studio/studiotest"
)

func TestAppsKeepThePromises(t *testing.T) {
	studiotest.Run(t, func(t *testing.T) studiotest.Fixture {
		db := storetest.Open(t)
		return studiotest.Fixture{Store: store.Apps(db), Events: store.Events(db)}
	})
}
