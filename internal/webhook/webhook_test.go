package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/memory"
	"github.com/engi-dev/engi/internal/network/fetch"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/webhook"
)

// A receiver answers with the given statuses in order, and then repeats the last one.
type receiver struct {
	*httptest.Server

	mu       sync.Mutex
	statuses []int
	got      []*http.Request
	bodies   []string
	arrived  chan string // types of events
}

func newReceiver(t *testing.T, statuses ...int) *receiver {
	r := &receiver{statuses: statuses, arrived: make(chan string, 1000)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		var e struct{ Type string }
		if err := json.Unmarshal(body, &e); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got, r.bodies = append(r.got, q), append(r.bodies, string(body))
		status := 200
		if len(r.statuses) > 0 {
			status = r.statuses[0]
			if len(r.statuses) > 1 {
				r.statuses = r.statuses[1:]
			}
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		r.arrived <- e.Type
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) want(t *testing.T, types ...string) {
	t.Helper()
	for _, want := range types {
		select {
		case got := <-r.arrived:
			if got != want {
				t.Errorf("%s arrived, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s has not arrived", want)
		}
	}
}

func (r *receiver) wantNothing(t *testing.T) {
	t.Helper()
	select {
	case got := <-r.arrived:
		t.Errorf("%s arrived", got)
	case <-time.After(50 * time.Millisecond):
	}
}

type fixture struct {
	*webhook.Manager
	runs *function.Runner
	log  engi.EventLog
}

func (fx *fixture) append(t *testing.T, owner engi.Owner, kind string) engi.Event {
	t.Helper()
	events, err := fx.log.Append(t.Context(), engi.EventSpec{Owner: owner, Type: kind, Data: json.RawMessage(`{"a":"ü"}`)})
	if err != nil {
		t.Fatal(err)
	}
	return events[0]
}

func (fx *fixture) create(t *testing.T, spec engi.WebhookSpec) (engi.Webhook, string) {
	t.Helper()
	w, secret, err := fx.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return w, secret
}

// delivery waits for the end of the n-th delivery, from 0.
func (fx *fixture) delivery(t *testing.T, w engi.Webhook, n int) engi.WebhookDelivery {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		all, err := fx.Deliveries(t.Context(), w.Owner.Viewer(), w.ID, 0)
		if err != nil {
			t.Fatal(err)
		}
		if i := len(all) - 1 - n; i >= 0 && !all[i].Ended.IsZero() {
			return all[i]
		}
	}
	t.Fatalf("delivery %d has not ended", n)
	return engi.WebhookDelivery{}
}

// keyFile is the same throughout a test.
func keyFile(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "engi-webhook-"+strconv.Itoa(os.Getpid())+"-"+t.Name())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "secret.key")
}

// TestKeyRotation encrypts secrets again, with a key that is then the only one to decrypt them.
func TestKeyRotation(t *testing.T) {
	db := open(t)
	fx, stop := serve(t, db, webhook.Options{})
	r := newReceiver(t)
	fx.create(t, engi.WebhookSpec{Owner: "ann", URL: r.URL, Types: []string{"x"}})
	stop()
	n, err := secret.Rotate(t.Context(), store.Secrets(db), secret.Options{Path: keyFile(t), Reseal: func(ctx context.Context, s *secret.Service) (int, error) {
		return webhook.Reseal(ctx, store.Webhooks(db), s)
	}})
	if err != nil || n != 1 {
		t.Fatalf("%d %v", n, err)
	}
	fx, stop = serve(t, db, webhook.Options{})
	fx.append(t, "ann", "x")
	r.want(t, "x")
	stop()
	if err := os.Remove(keyFile(t)); err != nil {
		t.Fatal(err)
	}
	fx, _ = serve(t, db, webhook.Options{})
	if all, err := fx.List(t.Context(), engi.Everyone, engi.Paging{}); err != nil || len(all) != 1 || all[0].Enabled || all[0].Reason == "" {
		t.Errorf("with another key: %+v %v", all, err)
	}
}

// serve runs webhooks on a database until stop.
func serve(t *testing.T, db *store.DB, o webhook.Options) (fx *fixture, stop func()) {
	t.Helper()
	sealer, err := secret.Open(t.Context(), store.Secrets(db), secret.Options{Path: keyFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.Events, o.Seal = store.Webhooks(db), store.Events(db), sealer
	if o.Client == nil {
		o.Client = &http.Client{}
	}
	m, err := webhook.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := function.New(function.Options{Source: m, Store: store.Functions(db), Events: o.Events, Engine: &memory.Engine{}})
	if err != nil {
		t.Fatal(err)
	}
	m.Bind(r)
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- r.Serve(ctx, func() { close(ready) }) }()
	<-ready
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &fixture{m, r, o.Events}, stop
}

func open(t *testing.T) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestDelivery(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{})
	fx.append(t, "ann", "early/bird")
	r := newReceiver(t)
	w, secret := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: r.URL + "/hook?token=x", Types: []string{"orders/*"}})
	if !strings.HasPrefix(secret, "whsec_") || !w.Enabled {
		t.Errorf("%+v %s", w, secret)
	}
	fx.append(t, "bob", "orders/paid")
	fx.append(t, "ann", "other")
	e := fx.append(t, "ann", "orders/paid")
	r.want(t, "orders/paid")
	r.wantNothing(t)
	d := fx.delivery(t, w, 0)
	if d.Event != e.ID || d.State != engi.FunctionDone || d.Status != 200 || d.Attempts != 1 {
		t.Errorf("%+v", d)
	}
	var body struct {
		ID, Owner, Subject, Type string
		Seq                      int64
		Data                     map[string]string
	}
	if err := json.Unmarshal([]byte(r.bodies[0]), &body); err != nil || body.ID != string(e.ID) || body.Seq != e.Seq || body.Data["a"] != "ü" || body.Owner != "ann" {
		t.Errorf("%s %v", r.bodies[0], err)
	}
	q := r.got[0]
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%s.%s.%s", q.Header.Get("Webhook-Id"), q.Header.Get("Webhook-Timestamp"), r.bodies[0])
	if got := q.Header.Get("Webhook-Signature"); got != "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)) || q.Header.Get("Webhook-Id") != string(e.ID) {
		t.Errorf("%v", q.Header)
	}
	if _, err := fx.Redeliver(t.Context(), "bob", w.ID, e.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("another owner sends it again: %v", err)
	}
	if _, err := fx.Redeliver(t.Context(), "ann", w.ID, e.ID); err != nil {
		t.Error(err)
	}
	r.want(t, "orders/paid")
	if r.got[1].Header.Get("Webhook-Id") != string(e.ID) {
		t.Errorf("a repetition looks like another event: %v", r.got[1].Header)
	}
	// Events of another owner are not sent in this way either.
	theirs := fx.append(t, "bob", "orders/paid")
	if _, err := fx.Redeliver(t.Context(), "ann", w.ID, theirs.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("another owner's event: %v", err)
	}
}

// TestNoLoops sends all events, which must not include those caused by sending.
func TestNoLoops(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{})
	r := newReceiver(t)
	w, _ := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: r.URL})
	fx.append(t, "ann", "one")
	r.want(t, "one")
	fx.delivery(t, w, 0)
	fx.append(t, "ann", "webhook.two") // an event of the user
	r.want(t, "webhook.two")
	fx.delivery(t, w, 1)
	r.wantNothing(t)
}

func TestFailures(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{})
	r := newReceiver(t, 500, 302, 200)
	w, _ := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: r.URL, Name: "flaky"})
	fx.append(t, "ann", "x")
	r.want(t, "x")
	waitFor(t, func() bool {
		all, err := fx.Deliveries(t.Context(), "ann", w.ID, 0)
		return err == nil && len(all) == 1 && all[0].State == engi.FunctionWaiting && strings.Contains(all[0].Error.Text, "500")
	})

	gone := newReceiver(t, 410)
	v, _ := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: gone.URL, Types: []string{"y"}})
	fx.append(t, "ann", "y")
	gone.want(t, "y")
	if d := fx.delivery(t, v, 0); d.State != engi.FunctionFailed || d.Attempts != 1 {
		t.Errorf("%+v", d)
	}
	if v, err := fx.Get(t.Context(), "ann", v.ID); err != nil || v.Enabled || !strings.Contains(v.Reason, "410") {
		t.Errorf("%+v %v", v, err)
	}
	fx.append(t, "ann", "y")
	gone.wantNothing(t)
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has not happened")
		}
	}
}

// TestPrivateAddresses delivers through the client of package fetch.
func TestPrivateAddresses(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{Client: fetch.New(fetch.Options{})})
	r := newReceiver(t)
	w, _ := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: r.URL})
	fx.append(t, "ann", "x")
	if d := fx.delivery(t, w, 0); d.State != engi.FunctionFailed || d.Error.Kind != engi.Denied || d.Attempts != 1 {
		t.Errorf("%+v %v", d, d.Error)
	}
	r.wantNothing(t)
}

// TestRestart leaves events between two processes, and an unfinished
// delivery.
func TestRestart(t *testing.T) {
	db := open(t)
	fx, stop := serve(t, db, webhook.Options{})
	r := newReceiver(t)
	w, secret := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: r.URL, Types: []string{"n/*"}})
	fx.append(t, "ann", "n/1")
	r.want(t, "n/1")
	fx.delivery(t, w, 0)
	stop()
	fx.append(t, "ann", "n/2")
	fx.append(t, "ann", "n/3")
	fx, _ = serve(t, db, webhook.Options{})
	all := map[string]bool{}
	for range 2 {
		select {
		case kind := <-r.arrived:
			all[kind] = true
		case <-time.After(time.Minute):
			t.Fatal("nothing arrives after a restart")
		}
	}
	if !all["n/2"] || !all["n/3"] {
		t.Errorf("%v", all)
	}
	r.wantNothing(t)
	if xs, err := fx.List(t.Context(), "ann", engi.Paging{}); err != nil || len(xs) != 1 || xs[0].Types[0] != "n/*" {
		t.Errorf("%+v %v", xs, err)
	}
	if strings.Contains(string(mustJSON(t, fx.events(t))), strings.TrimPrefix(secret, "whsec_")) {
		t.Error("the secret is in an event")
	}
}

func (fx *fixture) events(t *testing.T) []engi.Event {
	t.Helper()
	all, err := fx.log.List(t.Context(), engi.Everyone, engi.EventFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDeadReceiver fills the queue of one owner's webhook; others must not be
// delayed.
func TestDeadReceiver(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{})
	hang := make(chan struct{})
	dead := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	defer dead.Close()
	defer close(hang)
	w, _ := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: dead.URL})
	specs := make([]engi.EventSpec, 1100)
	for i := range specs {
		specs[i] = engi.EventSpec{Owner: "ann", Type: "x"}
	}
	if _, err := fx.log.Append(t.Context(), specs...); err != nil {
		t.Fatal(err)
	}
	r := newReceiver(t)
	fx.create(t, engi.WebhookSpec{Owner: "bob", URL: r.URL})
	fx.append(t, "bob", "y")
	r.want(t, "y")
	dropped := 0
	for _, e := range fx.events(t) {
		if e.Type == engi.EventWebhookDropped && e.Subject == string(w.ID) {
			dropped++
		}
	}
	if dropped != 1 {
		t.Errorf("%d events tell of dropped ones", dropped)
	}
	if err := fx.Remove(t.Context(), "ann", w.ID); err != nil {
		t.Error(err)
	}
}

func TestOwners(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{Fixed: []webhook.Fixed{{Webhook: engi.Webhook{Name: "audit", URL: "https://audit.example.com"}, Secret: "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 24))}}})
	w, _ := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: "https://example.com/a"})
	no := false
	for name, f := range map[string]func(viewer engi.Viewer, id engi.WebhookID) error{
		"get": func(o engi.Viewer, id engi.WebhookID) error { _, err := fx.Get(t.Context(), o, id); return err },
		"update": func(o engi.Viewer, id engi.WebhookID) error {
			_, _, err := fx.Update(t.Context(), o, id, engi.WebhookUpdate{Enabled: &no})
			return err
		},
		"log": func(o engi.Viewer, id engi.WebhookID) error {
			_, err := fx.Deliveries(t.Context(), o, id, 0)
			return err
		},
		"remove": func(o engi.Viewer, id engi.WebhookID) error { return fx.Remove(t.Context(), o, id) },
	} {
		for _, viewer := range []engi.Viewer{"bob", ""} {
			if err := f(viewer, w.ID); !engi.Is(err, engi.NotFound) {
				t.Errorf("%s as %q: %v", name, viewer, err)
			}
		}
	}
	all, err := fx.List(t.Context(), engi.Everyone, engi.Paging{})
	if err != nil || len(all) != 2 || all[1].ID == w.ID && all[0].Name != "audit" {
		t.Fatalf("%+v %v", all, err)
	}
	for _, x := range all {
		if x.Name == "audit" {
			if err := fx.Remove(t.Context(), engi.Everyone, x.ID); !engi.Is(err, engi.Denied) {
				t.Errorf("a webhook of the configuration is removed: %v", err)
			}
		}
	}
	for range 99 {
		fx.create(t, engi.WebhookSpec{Owner: "ann", URL: "https://example.com/a"})
	}
	if _, _, err := fx.Create(t.Context(), engi.WebhookSpec{Owner: "ann", URL: "https://example.com/a"}); !engi.Is(err, engi.Exhausted) {
		t.Errorf("101 webhooks: %v", err)
	}
}

func TestChanges(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{})
	r := newReceiver(t)
	w, first := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: "https://nowhere.invalid", Disabled: true})
	fresh, name, types, yes := "", "renamed", []string{"z"}, true
	w, second, err := fx.Update(t.Context(), "ann", w.ID, engi.WebhookUpdate{Name: &name, URL: &r.URL, Types: &types, Secret: &fresh, Enabled: &yes})
	if err != nil || second == "" || second == first || w.Name != name || w.URL != r.URL || !w.Enabled {
		t.Fatalf("%+v %v", w, err)
	}
	fx.append(t, "ann", "z")
	r.want(t, "z")
	bad := "ftp://x"
	if _, _, err := fx.Update(t.Context(), "ann", w.ID, engi.WebhookUpdate{URL: &bad}); !engi.Is(err, engi.Invalid) {
		t.Errorf("%v", err)
	}
	if err := fx.Remove(t.Context(), "ann", w.ID); err != nil {
		t.Fatal(err)
	}
	fx.append(t, "ann", "z")
	r.wantNothing(t)
}

func TestRefused(t *testing.T) {
	fx, _ := serve(t, open(t), webhook.Options{})
	const ok = "https://example.com/"
	for name, spec := range map[string]engi.WebhookSpec{
		"no URL":      {},
		"scheme":      {URL: "file:///etc/passwd"},
		"user":        {URL: "https://u:p@example.com/"},
		"long":        {URL: ok + strings.Repeat("x", 2048)},
		"no host":     {URL: "https:///x"},
		"type":        {URL: ok, Types: []string{"a b"}},
		"star inside": {URL: ok, Types: []string{"a*b"}},
		"types":       {URL: ok, Types: make([]string, 51)},
		"format":      {URL: ok, Format: "carrier-pigeon"},
		"secret":      {URL: ok, Secret: "hunter2"},
		"short":       {URL: ok, Secret: "whsec_aGk="},
		"name":        {URL: ok, Name: "a\x1b[2J"},
		"long name":   {URL: ok, Name: strings.Repeat("x", 129)},
	} {
		if _, _, err := fx.Create(t.Context(), spec); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
