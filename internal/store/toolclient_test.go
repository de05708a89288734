package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

func TestToolClients(t *testing.T) {
	db := openDB(t)
	s, keys, ctx := store.ToolClients(db), key.New(store.Keys(db)), t.Context()
	k, _, err := keys.Create(ctx, engi.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().UTC().Truncate(time.Millisecond)
	old := at.Add(-time.Hour)
	put := func(id, key string, used time.Time) error {
		return s.Put(ctx, engi.ToolClient{ID: id, Key: key, About: []byte(`{"id":1}`), Used: used}, 2, old)
	}
	get := func(key, id string) error {
		t.Helper()
		c, err := s.Get(ctx, key, id, old)
		if err == nil && (c.ID != id || c.Key != key || string(c.About) != `{"id":1}` || c.Used.Before(old)) {
			t.Errorf("%+v", c)
		}
		return err
	}
	for _, id := range []string{"a", "b"} {
		if err := put(id, k.ID, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("c", k.ID, at); !engi.Is(err, engi.Exhausted) {
		t.Errorf("the third of two: %v", err)
	}
	if err := put("c", "other", at); err != nil {
		t.Errorf("another key: %v", err)
	}
	if err := get("other", "a"); !engi.Is(err, engi.NotFound) {
		t.Errorf("of another key: %v", err)
	}
	// One that ends makes room, and so does one that is not used.
	if err := s.Delete(ctx, "other", "a"); err != nil || get(k.ID, "a") != nil {
		t.Errorf("another key ends it: %v %v", err, get(k.ID, "a"))
	}
	if err := s.Delete(ctx, k.ID, "a"); err != nil || get(k.ID, "a") == nil {
		t.Errorf("%v", err)
	}
	if err := put("d", k.ID, at); err != nil {
		t.Error(err)
	}
	if err := s.Touch(ctx, "b", old); err != nil || !engi.Is(get(k.ID, "b"), engi.NotFound) {
		t.Errorf("unused: %v", err)
	}
	if err := put("e", k.ID, at); err != nil {
		t.Error(err)
	}

	// Requests go with their session, the oldest before.
	for i := range 4 {
		if err := s.PutRequest(ctx, engi.ToolRequest{Client: "d", Stream: fmt.Sprint(i), Run: "run_1", Body: []byte("body")}, 3); err != nil {
			t.Fatal(err)
		}
	}
	for _, answer := range []string{"first\n", "second"} {
		if err := s.AddAnswer(ctx, "d", "3", []byte(answer), 20); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := s.Request(ctx, "d", "3"); err != nil || string(r.Body) != "body" || r.Run != "run_1" || len(r.Answers) != 2 || string(r.Answers[0]) != "first\n" || string(r.Answers[1]) != "second" {
		t.Errorf("%+v %v", r, err)
	}
	if err := s.AddAnswer(ctx, "d", "3", make([]byte, 20), 20); err != nil { // too much
		t.Fatal(err)
	}
	if r, err := s.Request(ctx, "d", "3"); err != nil || len(r.Answers) != 2 {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := s.Request(ctx, "d", "1"); err != nil || len(r.Answers) != 0 {
		t.Errorf("%+v %v", r, err)
	}
	for _, of := range [][2]string{{"d", "0"}, {"e", "3"}} {
		if _, err := s.Request(ctx, of[0], of[1]); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v: %v", of, err)
		}
	}
	// All sessions of a key share the limit; those of others do not.
	for _, client := range []string{"e", "c"} {
		if err := s.PutRequest(ctx, engi.ToolRequest{Client: client, Stream: "x", Body: []byte("body")}, 3); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Request(ctx, "d", "1"); !engi.Is(err, engi.NotFound) {
		t.Errorf("the fourth of three of a key: %v", err)
	}
	if _, err := s.Request(ctx, "d", "2"); err != nil {
		t.Error(err)
	}
	if err := keys.Revoke(ctx, "ann", k.ID); err != nil {
		t.Fatal(err)
	}
	if err := get(k.ID, "d"); !engi.Is(err, engi.NotFound) {
		t.Errorf("of a revoked key: %v", err)
	}
	if _, err := s.Request(ctx, "d", "3"); !engi.Is(err, engi.NotFound) {
		t.Errorf("of a revoked key: %v", err)
	}
	if err := get("other", "c"); err != nil {
		t.Error(err)
	}
}
