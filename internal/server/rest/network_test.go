package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

const wholePolicy = `{
	"mode": "restricted", "allow": ["api.example.com", "*.example.org:443", "tcp://93.184.216.0/24:1-1024"], "deny": ["x.example.org"],
	"grants": [{"secret": "s", "hosts": ["api.example.com"], "as": "header", "name": "X-Key", "format": "key {}", "strip": true,
			"requests": [{"methods": ["POST"], "path": "/v1/messages", "body": ["mcp_servers absent", "model in [\"small-*\"]"]}, {"methods": ["GET"], "path": "/v1/**"}]},
		{"secret": "t", "hosts": ["*.example.org"], "env": "TOKEN"}],
	"headers": [{"host": "api.example.com", "headers": {"X-Team": "${secrets.team}"}}],
	"requests": [{"host": "api.example.com", "path": "/v1/admin/**", "action": "deny", "reason": "for people only"},
		{"host": "*.example.org", "methods": ["GET", "PUT"], "path": "/files/*", "action": "ask_exact", "max_body": "2MiB", "body": ["size max 10"]}, {"host": "http://api.example.com"}],
	"proxy": {"address": "socks5://p.example.com:1080", "user": "u", "password": "hunter2"},
	"group": "shop", "name": "db", "limits": {"up": "1MiB", "down": 2000, "connections": 3, "new_connections": 4, "lookups": 5, "total": "1GiB"}}`

// TestPoliciesComeBackWhole sends one policy in every way there is.
func TestPoliciesComeBackWhole(t *testing.T) {
	w := newFixture(t, nil)
	want := engi.NetworkPolicy{
		Mode: engi.NetworkRestricted, Allow: []string{"api.example.com", "*.example.org:443", "tcp://93.184.216.0/24:1-1024"}, Deny: []string{"x.example.org"},
		Grants: []engi.Grant{{Secret: "s", Hosts: []string{"api.example.com"}, As: engi.GrantHeader, Name: "X-Key", Format: "key {}", Strip: true, Requests: []engi.RequestRule{
			{Methods: []string{"POST"}, Path: "/v1/messages", Body: []string{"mcp_servers absent", `model in ["small-*"]`}}, {Methods: []string{"GET"}, Path: "/v1/**"}}},
			{Secret: "t", Hosts: []string{"*.example.org"}, Env: "TOKEN"}},
		Headers: []engi.HeaderRule{{Host: "api.example.com", Headers: map[string]string{"X-Team": "${secrets.team}"}}},
		Requests: []engi.RequestRule{{Host: "api.example.com", Path: "/v1/admin/**", Action: engi.RequestDeny, Reason: "for people only"},
			{Host: "*.example.org", Methods: []string{"GET", "PUT"}, Path: "/files/*", Action: engi.RequestAskExact, MaxBody: 2 << 20, Body: []string{"size max 10"}}, {Host: "http://api.example.com"}},
		Proxy: &engi.UpstreamProxy{Address: "socks5://p.example.com:1080", User: "u", Password: "hunter2"},
		Group: "shop", Name: "db",
		Limits: engi.NetworkLimits{Up: 1 << 20, Down: 2000, Connections: 3, NewConnections: 4, Lookups: 5, Total: 1 << 30},
	}
	kept := func(how, id string) {
		t.Helper()
		b, err := w.Sandboxes.Get(t.Context(), "ann", engi.SandboxID(id))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, b.Network); d != "" {
			t.Errorf("%s (-want +got):\n%s", how, d)
		}
	}
	rec := ask(t, w, "POST", "/v1/sandboxes", `{"network":`+wholePolicy+`}`)
	made := read[v1.Sandbox](t, rec, 201)
	kept("POST", made.ID)

	path := "/v1/sandboxes/" + made.ID
	read[v1.Sandbox](t, ask(t, w, "PATCH", path, `{"network":{"mode":"none"}}`), 200)
	read[v1.Sandbox](t, ask(t, w, "PATCH", path, `{"network":`+wholePolicy+`}`), 200)
	kept("PATCH", made.ID)

	// An answer sent back changes nothing, although it has no password.
	got := ask(t, w, "GET", path+"/network", "")
	for _, body := range []string{rec.Body.String(), got.Body.String(), ask(t, w, "GET", path, "").Body.String(), ask(t, w, "GET", "/v1/sandboxes", "").Body.String()} {
		if strings.Contains(body, "hunter2") || !strings.Contains(body, "p.example.com") {
			t.Errorf("the password of the proxy is shown, or its address is not: %s", body)
		}
	}
	read[v1.NetworkPolicy](t, ask(t, w, "PUT", path+"/network", got.Body.String()), 200)
	kept("PUT", made.ID)
	read[v1.Sandbox](t, ask(t, w, "PATCH", path, `{"network":`+got.Body.String()+`}`), 200)
	kept("PATCH of an answer", made.ID)

	// It is for that user of that proxy only.
	other := strings.Replace(got.Body.String(), "p.example.com", "q.example.com", 1)
	read[v1.NetworkPolicy](t, ask(t, w, "PUT", path+"/network", other), 200)
	b, err := w.Sandboxes.Get(t.Context(), engi.Everyone, engi.SandboxID(made.ID))
	if err != nil || b.Network.Proxy.Password != "" {
		t.Errorf("another proxy gets password %q, %v", b.Network.Proxy.Password, err)
	}
	// Replacing is replacing.
	if p := read[v1.NetworkPolicy](t, ask(t, w, "PUT", path+"/network", `{"allow":["a.example.com"]}`), 200); p.Mode != "restricted" || p.Proxy != nil || p.Group != "" {
		t.Errorf("PUT leaves %+v", p)
	}
}

func TestExecutionsTakeAModeOrAPolicy(t *testing.T) {
	w := newFixture(t, nil)
	for _, network := range []string{`"none"`, `"open"`, `null`, `{}`, `{"mode":"isolated"}`, wholePolicy} {
		body := fmt.Sprintf(`{"language":"bash","code":"echo a","network":%s}`, network)
		read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", body), 200)
		long := fmt.Sprintf(`{"language":"bash","code":"echo a%s","network":%s}`, strings.Repeat(" ", 20<<10), network) // read in another way
		read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", long), 200)
	}
	if rec := ask(t, w, "POST", "/v1/executions", `{"language":"bash","code":"echo a","network":{"mode":"restricted","allow":["10.0.0.0/8"]}}`); rec.Code == 200 {
		t.Errorf("a private network is open: %s", rec.Body)
	}
}

// TestBadPoliciesNameTheField holds that refusals say where the fault is.
func TestBadPoliciesNameTheField(t *testing.T) {
	w := newFixture(t, nil)
	id := read[v1.Sandbox](t, ask(t, w, "POST", "/v1/sandboxes", `{}`), 201).ID
	for body, want := range map[string]string{
		`{"mode":"opne"}`:                                                          "mode",
		`{"mod":"open"}`:                                                           "mod",
		`{"allow":"a"}`:                                                            "allow",
		`{"allow":["a.example.com",""]}`:                                           "allow[1]",
		`{"allow":["a.example.com","a b"]}`:                                        "allow[1]",
		`{"allow":["a.example.com:0"]}`:                                            "allow[0]",
		`{"allow":["a.example.com:9-3"]}`:                                          "allow[0]",
		`{"allow":["10.0.0.0/33"]}`:                                                "allow[0]",
		`{"allow":["ftp://a.example.com"]}`:                                        "allow[0]",
		`{"mode":"open","deny":["ok.com","*.*.b"]}`:                                "deny[1]",
		`{"grants":[{"secret":"s"}]}`:                                              "grants[0].hosts",
		`{"grants":[{"hosts":["a.example.com"]}]}`:                                 "grants[0].secret",
		`{"grants":[{"secret":"s","hosts":["a.example.com"],"as":"cookie"}]}`:      "grants[0].as",
		`{"grants":[{"secret":"s","hosts":["a.example.com"],"as":"header"}]}`:      "grants[0].name",
		`{"grants":[{"secret":"s","hosts":["a.example.com"],"as":"placeholder"}]}`: "grants[0].env",
		`{"grants":[{"secret":"s","hosts":["a.example.com"],"format":"x"}]}`:       "grants[0].format",
		`{"grants":[{"secret":"s","hosts":["a.example.com"]},{"secret":"s","hosts":["10.0.0.0/8"]}]}`: "grants[1]",
		`{"requests":[{"path":"/a"}]}`: "requests[0]",
		`{"requests":[{"host":"a.example.com"},{"host":"a.example.com","methods":["get"]}]}`:            "requests[1]",
		`{"requests":[{"host":"a.example.com","action":"drop"}]}`:                                       "requests[0]",
		`{"requests":[{"host":"a.example.com","body":["a is b"]}]}`:                                     "requests[0]",
		`{"requests":[{"host":"a.example.com","verb":"GET"}]}`:                                          "requests[0].verb",
		`{"requests":[{"host":"a.example.com","max_body":"1GiB"}]}`:                                     "requests[0]",
		`{"requests":[{"host":"*.example.com"},{"host":"a.example.com","methods":["GET"]}]}`:            "requests",
		`{"mode":"open","requests":[{"host":"a.example.com","action":"deny"}]}`:                         "requests",
		`{"grants":[{"secret":"s","hosts":["a.example.com"],"requests":[{"path":"/a"},{"path":"b"}]}]}`: "grants[0].requests[1]",
		`{"headers":[{"headers":{"A":"b"}}]}`:                                                           "headers[0].host",
		`{"headers":[{"host":"a.example.com"}]}`:                                                        "headers[0].headers",
		`{"mode":"open","headers":[{"host":"a.example.com","headers":{"A b":"c"}}]}`:                    "headers[0]",
		`{"mode":"open","headers":[{"host":"a.example.com","headers":{"A":"b\nC: d"}}]}`:                "headers[0]",
		`{"mode":"open","proxy":{"user":"u"}}`:                                                          "proxy.address",
		`{"mode":"open","proxy":{"address":"h:1","password":"p"}}`:                                      "proxy.user",
		`{"mode":"open","proxy":{"address":"ftp://h:1"}}`:                                               "proxy",
		`{"limits":{"connections":-1}}`:                                                                 "limits.connections",
		`{"limits":{"up":"x"}}`:                                                                         "limits.up",
	} {
		for name, try := range map[string]struct{ method, path, body, prefix string }{
			"PUT":       {"PUT", "/v1/sandboxes/" + id + "/network", body, ""},
			"PATCH":     {"PATCH", "/v1/sandboxes/" + id, `{"network":` + body + `}`, "network."},
			"POST":      {"POST", "/v1/sandboxes", `{"network":` + body + `}`, "network."},
			"execution": {"POST", "/v1/executions", `{"language":"bash","code":"x","network":` + body + `}`, "network."},
		} {
			p := read[v1.Problem](t, ask(t, w, try.method, try.path, try.body), 400)
			field, _, _ := strings.Cut(p.Detail, ":")
			if len(p.Faults) > 0 {
				field = p.Faults[0].Field
			}
			if field != try.prefix+want {
				t.Errorf("%s of %s: the fault is at %q, want %q: %s", name, body, field, try.prefix+want, p.Detail)
			}
		}
	}
}

func eventsOf(t *testing.T, rec *httptest.ResponseRecorder) string {
	t.Helper()
	var all []string
	for line := range strings.Lines(rec.Body.String()) {
		line = strings.TrimPrefix(line, "data: ")
		var e v1.NetworkRecord
		if strings.HasPrefix(line, "{") {
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s@%d", e.Type, e.Seq))
		}
	}
	return strings.Join(all, " ")
}

func TestNetworkEvents(t *testing.T) {
	w := newFixture(t, nil)
	id := read[v1.Sandbox](t, ask(t, w, "POST", "/v1/sandboxes", `{}`), 201).ID
	path := "/v1/sandboxes/" + id + "/network/events"
	add := func(events ...engi.NetworkRecord) {
		t.Helper()
		if err := w.Networks.Add(t.Context(), engi.SandboxID(id), events...); err != nil {
			t.Fatal(err)
		}
	}
	if list := read[v1.List[v1.NetworkRecord]](t, ask(t, w, "GET", path, ""), 200); list.Items == nil || len(list.Items) != 0 {
		t.Errorf("no events are %+v", list)
	}
	add(engi.NetworkRecord{Kind: engi.NetworkLookup, Host: "ü\xff.example.com", Reason: "no rule"},
		engi.NetworkRecord{Kind: engi.NetworkConnect, Protocol: "tcp", Address: netip.MustParseAddrPort("192.0.2.7:443"), Allowed: true, Rule: "192.0.2.0/24"},
		engi.NetworkRecord{Kind: engi.NetworkClose, Protocol: "tcp", Up: 1, Down: 2})
	for name, c := range map[string]struct {
		path   string
		header []string
		want   string
	}{
		"lines":          {path, []string{"Accept", "application/x-ndjson"}, "lookup@1 connect@2 close@3"},
		"SSE":            {path, []string{"Accept", "text/event-stream"}, "lookup@1 connect@2 close@3"},
		"after":          {path + "?after=2", []string{"Accept", "application/x-ndjson"}, "close@3"},
		"after the last": {path + "?after=3", []string{"Accept", "application/x-ndjson"}, ""},
		"limit":          {path + "?after=1&limit=1", []string{"Accept", "application/x-ndjson"}, "connect@2"},
		"browsers":       {path + "?after=1", []string{"Accept", "text/event-stream", "Last-Event-ID", "2"}, "close@3"},
	} {
		if got := eventsOf(t, ask(t, w, "GET", c.path, "", c.header...)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if rec := ask(t, w, "GET", path, "", "Accept", "text/event-stream"); !strings.Contains(rec.Body.String(), "id: 2\nevent: connect\n") {
		t.Errorf("SSE: %s", rec.Body)
	}
	if list := read[v1.List[v1.NetworkRecord]](t, ask(t, w, "GET", path+"?after=1&limit=1&follow=true", ""), 200); len(list.Items) != 1 || list.Items[0].Address != "192.0.2.7:443" {
		t.Errorf("JSON: %+v", list)
	}
	for query, want := range map[string]int{"?after=-1": 400, "?limit=0": 400, "?limit=10001": 400, "?follow=maybe": 400, "?nonsense=1": 400} {
		if rec := ask(t, w, "GET", path+query, ""); rec.Code != want {
			t.Errorf("%s: status %d, want %d", query, rec.Code, want)
		}
	}
	if rec := ask(t, w, "GET", path, "", "Last-Event-ID", "x"); rec.Code != 400 {
		t.Errorf("status %d of an odd event", rec.Code)
	}
	bare := newFixture(t, func(o *apitest.Options) { o.Networks = nil })
	id = read[v1.Sandbox](t, ask(t, bare, "POST", "/v1/sandboxes", `{}`), 201).ID
	if rec := ask(t, bare, "GET", "/v1/sandboxes/"+id+"/network/events", ""); rec.Code != 501 {
		t.Errorf("status %d without a log", rec.Code)
	}
}

// TestNetworkEventsAreFollowed reads streams while events come, and after the
// sandbox has stopped.
func TestNetworkEventsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		w := apitest.New(nil)
		defer w.Close()
		b, err := w.Executions.Start(ctx, engi.ExecutionSpec{Owner: "ann", Program: engi.Program{Language: engi.Bash, Files: []engi.SourceFile{{Path: "main.sh", Data: []byte("sleep 60s")}}, Entry: "main.sh"}})
		if err != nil {
			t.Fatal(err)
		}
		add := func(kind engi.NetworkRecordKind) {
			if err := w.Networks.Add(ctx, b.Sandbox, engi.NetworkRecord{Kind: kind}); err != nil {
				t.Error(err)
			}
		}
		add(engi.NetworkLookup)
		path := "/v1/sandboxes/" + string(b.Sandbox) + "/network/events?follow=true"
		got := make(chan string, 3)
		for _, form := range []string{"application/x-ndjson", "text/event-stream"} {
			go func() {
				ctx, cancel := context.WithTimeout(ctx, 50*time.Second)
				defer cancel()
				r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost"+path, nil)
				r.Header.Set("Authorization", "Bearer "+w.User)
				r.Header.Set("Accept", form)
				rec := httptest.NewRecorder()
				w.Handler.ServeHTTP(rec, r)
				got <- strings.ReplaceAll(strings.ReplaceAll(eventsOf(t, rec), " heartbeat@1", ""), " heartbeat@2", "")
			}()
		}
		go func() { got <- eventsJSON(t, w, path+"&after=1") }()
		time.Sleep(20 * time.Second)
		add(engi.NetworkConnect)
		for range 3 {
			if e := <-got; e != "lookup@1 connect@2" && e != "connect@2" {
				t.Errorf("followed %q", e)
			}
		}
		if e := eventsJSON(t, w, path+"&after=2"); e != "" {
			t.Errorf("nothing came, but %q", e)
		}
	})
	t.Run("to the end", func(t *testing.T) {
		w := newFixture(t, func(o *apitest.Options) { o.Beat = 20 * time.Millisecond })
		id := read[v1.Sandbox](t, ask(t, w, "POST", "/v1/sandboxes", `{}`), 201).ID
		if err := w.Networks.Add(t.Context(), engi.SandboxID(id), engi.NetworkRecord{Kind: engi.NetworkLookup}); err != nil {
			t.Fatal(err)
		}
		done := make(chan string)
		go func() {
			done <- eventsOf(t, ask(t, w, "GET", "/v1/sandboxes/"+id+"/network/events?follow=true", "", "Accept", "text/event-stream"))
		}()
		if rec := ask(t, w, "DELETE", "/v1/sandboxes/"+id, ""); rec.Code != 204 {
			t.Fatal(rec.Code)
		}
		select {
		case e := <-done:
			if e != "lookup@1" {
				t.Errorf("followed %q", e)
			}
		case <-time.After(time.Minute):
			t.Error("the stream of a sandbox that is gone does not end")
		}
	})
}

// TestNetworkFollowersAreBounded opens one stream too many.
func TestNetworkFollowersAreBounded(t *testing.T) {
	w := newFixture(t, nil)
	id := read[v1.Sandbox](t, ask(t, w, "POST", "/v1/sandboxes", `{}`), 201).ID
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	refused := make(chan *httptest.ResponseRecorder, 600)
	for range 600 { // stands for any number: the bound is 512
		work.Go(func() {
			r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost/v1/sandboxes/"+id+"/network/events?follow=true", nil)
			r.Header.Set("Authorization", "Bearer "+w.User)
			r.Header.Set("Accept", "application/x-ndjson")
			rec := httptest.NewRecorder()
			w.Handler.ServeHTTP(rec, r)
			if rec.Code != 200 {
				refused <- rec
			}
		})
	}
	for range 600 - 512 {
		select {
		case rec := <-refused:
			if rec.Code != 429 || !strings.Contains(rec.Body.String(), "512 streams") {
				t.Errorf("status %d: %s", rec.Code, rec.Body)
			}
		case <-time.After(time.Minute):
			t.Fatal("there is no bound")
		}
	}
	cancel()
	work.Wait()
	if len(refused) > 0 {
		t.Errorf("%d more were refused", len(refused))
	}
}

func eventsJSON(t *testing.T, w *apitest.Fixture, path string) string {
	var all []string
	for _, e := range read[v1.List[v1.NetworkRecord]](t, ask(t, w, "GET", path, ""), 200).Items {
		all = append(all, fmt.Sprintf("%s@%d", e.Type, e.Seq))
	}
	return strings.Join(all, " ")
}
