package store_test

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/session"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestPagesKeepThePromises(t *testing.T) {
	pagePromises(t, func(t *testing.T) pageFixture {
		db := storetest.Open(t)
		sessions := store.Sessions(db)
		return pageFixture{
			Store: store.Pages(db), Events: store.Events(db),
			Begin: func(owner engi.Owner) engi.SessionID {
				id := engi.NewSessionID()
				if err := sessions.Put(t.Context(), session.Record{Session: engi.Session{ID: id, Owner: owner, Created: time.Now()}}); err != nil {
					t.Fatal(err)
				}
				return id
			},
			End: func(id engi.SessionID) {
				r, err := sessions.Find(t.Context(), engi.Everyone, string(id))
				if err != nil {
					t.Fatal(err)
				}
				r.Ended = time.Now()
				if err := sessions.Save(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}
