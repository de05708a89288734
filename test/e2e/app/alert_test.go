package app

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// A delivery is a request of a webhook.
type delivery struct {
	id, stamp, signature string
	body                 []byte
	refused              bool // the receiver answered with 500
}

// signed reports whether a request is signed according to Standard Webhooks, for a receiver that
// knows only the secret.
func (d delivery) signed(t *testing.T, secret string) bool {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.ParseInt(d.stamp, 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(d.id + "." + d.stamp + "."))
	mac.Write(d.body)
	for one := range strings.FieldsSeq(d.signature) {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one, "v1,"))
		if err == nil && strings.HasPrefix(one, "v1,") && hmac.Equal(sum, mac.Sum(nil)) {
			return true
		}
	}
	return false
}

// An alert is the event of an alert's beginning or end.
type alert struct {
	Type, Subject string
	Seq           int64
	Data          struct {
		Metric, Action string
		Value, Limit   float64
		Alert          int64
	}
}

// greedy is a server that uses as much memory as requested.
const greedy = `<file path="server.js">
import { createServer } from 'node:http'

const taken = []
createServer((request, response) => {
  if (request.url === '/take') taken.push(Buffer.alloc(700 << 20, 1))
  response.end(String(taken.length))
}).listen(3000, '127.0.0.1')
</file>`

// TestAlerts: an app uses more memory than its threshold. A subscriber is notified
// of the alert, and of its end after the restart of the server, although the first delivery
// failed.
func TestAlerts(t *testing.T) {
	env.Slow(t)
	seen := make(chan delivery, 100)
	var tried sync.Map // attempts per event
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			t.Error(err)
		}
		d := delivery{r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), r.Header.Get("webhook-signature"), body, false}
		_, again := tried.LoadOrStore(d.id, true)
		if d.refused = !again; d.refused {
			w.WriteHeader(http.StatusInternalServerError)
		}
		seen <- d
	}))
	defer receiver.Close()

	w := &fixture{t: t, Server: env.Serve(t, env.ServerOptions{
		Config: "[webhooks]\nprivate = [\"127.0.0.1\"]\n[apps]\nhealth = \"1s\"\nafter = \"1s\"\nmemory = 0.25\nerrors = 0\nlatency = \"0s\"\nfiles = \"0s\"\ncache = 0\nstartup = \"0s\"\n",
	})}
	ctx := t.Context()
	w.Run("template", "build", "node-api")
	hook, err := w.CreateWebhook(ctx, v1.WebhookRequest{URL: receiver.URL, Types: []string{"app.alert*"}})
	if err != nil {
		t.Fatal(err)
	}
	if w.app, err = w.CreateApp(ctx, v1.AppRequest{Name: "greedy", Template: "node-api"}); err != nil {
		t.Fatal(err)
	}
	if u := w.apply(greedy, nil); u.Type != v1.AppDone {
		t.Fatalf("it ended with %+v, %+v", u, u.Error)
	}
	if s, err := w.AppStatus(ctx, "greedy"); err != nil || len(s.Alerts) != 0 {
		t.Fatalf("before it takes anything: %+v, %v", s.Alerts, err)
	}
	if n := w.get("/take"); n != "1" {
		t.Fatalf("it has taken %s", n)
	}

	told, attempts := map[string]alert{}, map[string]int{} // events by type, and attempts by event; the order is not promised
	for len(told) < 2 {
		select {
		case d := <-seen:
			attempts[d.id]++
			if !d.signed(t, hook.Secret) {
				t.Errorf("the signature of %+v is not valid", d)
			}
			d.id += "x"
			if d.signed(t, hook.Secret) {
				t.Error("the signature is one of anything")
			}
			var e alert
			if err := json.Unmarshal(d.body, &e); err != nil || e.Subject != w.app.ID || e.Data.Metric != "memory" || e.Data.Limit != 0.25 || (e.Data.Value > 0.25) != (e.Type == "app.alert") {
				t.Errorf("%s: %v", d.body, err)
			}
			if !d.refused {
				told[e.Type] = e
			}
		case <-time.After(200 * time.Millisecond): // a user of the app
			w.use()
		case <-ctx.Done():
			t.Fatal("the test has ended")
		}
	}
	if over := told["app.alert"]; over.Seq == 0 || over.Data.Action != "restart_server" || told["app.alert_resolved"].Data.Alert != over.Seq {
		t.Errorf("it was told %+v", told)
	}
	for id, n := range attempts {
		if n != 2 {
			t.Errorf("event %s came %d times", id, n)
		}
	}
	if n := w.get("/"); n != "0" {
		t.Errorf("its server was not started again, and has taken %s", n)
	}
	all, err := w.WebhookDeliveries(ctx, hook.ID, 0)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := w.RemoveApp(ctx, "greedy"); err != nil {
		t.Error(err)
	}
}

// dying is a server that ends on request.
const dying = `<file path="server.js">
import { createServer } from 'node:http'

createServer((request, response) => {
  if (request.url === '/die') setTimeout(() => process.exit(1), 100)
  response.end('alive')
}).listen(3000, '127.0.0.1')
</file>`

// TestAlertOfServer: the server of an app ends. The events report this
// and the end of the alert, since the server was restarted.
func TestAlertOfServer(t *testing.T) {
	env.Slow(t)
	w := &fixture{t: t, Server: env.Serve(t, env.ServerOptions{
		Config: "[apps]\nhealth = \"1s\"\nafter = \"1s\"\nmemory = 0\nerrors = 0\nlatency = \"0s\"\nfiles = \"0s\"\ncache = 0\nstartup = \"0s\"\n",
	})}
	ctx := t.Context()
	w.Run("template", "build", "node-api")
	var err error
	if w.app, err = w.CreateApp(ctx, v1.AppRequest{Name: "dying", Template: "node-api"}); err != nil {
		t.Fatal(err)
	}
	if u := w.apply(dying, nil); u.Type != v1.AppDone {
		t.Fatalf("it ended with %+v, %+v", u, u.Error)
	}
	after := w.get("/die")
	if after != "alive" {
		t.Fatalf("it answers %s", after)
	}
	used, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // a user of the app
		defer close(done)
		for used.Err() == nil {
			w.use()
			time.Sleep(200 * time.Millisecond)
		}
	}()
	defer func() { stop(); <-done }()
	var alerted, resolved bool
	for u, err := range w.WatchApp(ctx, w.app.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Name != "server" {
			continue
		}
		if alerted = alerted || u.Type == v1.AppAlerted; u.Type == v1.AppCalmed {
			resolved = true
			break
		}
	}
	if !alerted || !resolved {
		t.Errorf("it was told of the alert: %t, of its end: %t", alerted, resolved)
	}
	if page := w.get("/"); page != "alive" {
		t.Errorf("it answers %s", page)
	}
	if s, err := w.AppStatus(ctx, "dying"); err != nil || !s.Healthy || len(s.Alerts) != 0 {
		t.Errorf("its status is %+v, %v", s, err)
	}
	if err := w.RemoveApp(ctx, "dying"); err != nil {
		t.Error(err)
	}
}

// use requests the page of the app, as users do. Its server may be about to restart.
func (w *fixture) use() {
	u, err := url.Parse(w.app.PreviewURL)
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.URL, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = u.Host
	if resp, err := http.DefaultClient.Do(r); err == nil {
		resp.Body.Close()
	}
}
