package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

// eventList is a log of events in memory that counts what is read of it.
type eventList struct {
	mu   sync.Mutex
	all  []engi.Event // oldest first
	read int
}

func (l *eventList) add(e engi.Event) engi.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Seq, e.ID = int64(len(l.all))+1, engi.NewEventID()
	l.all = append(l.all, e)
	return e
}

func (l *eventList) List(_ context.Context, viewer engi.Viewer, f engi.EventFilter) (list []engi.Event, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.all)
	if !f.Oldest {
		slices.Reverse(all)
	}
	for _, e := range all {
		if len(list) < f.Limit && f.Matches(e) && viewer.Sees(e.Owner) {
			list = append(list, e)
		}
	}
	l.read += len(list)
	return list, nil
}

func (*eventList) Get(context.Context, engi.Viewer, engi.EventID) (engi.Event, error) {
	panic("not used")
}
func (*eventList) Follow(context.Context, engi.Viewer, engi.EventFilter) iter.Seq2[engi.Event, error] {
	panic("not used")
}
func (*eventList) Last(context.Context) (int64, error) { panic("not used") }

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// stateEvent is that of a sandbox that has become to at some seconds after
// began.
func stateEvent(owner engi.Owner, id engi.SandboxID, after int, from, to engi.State) engi.Event {
	d := map[string]any{"template": "base", "started": began, "vcpus": 1.5, "memory": 512 << 20, "metadata": map[string]string{"app": "x"}}
	if from != "" {
		d["from"] = from
	}
	return sandboxEventOf(owner, id, after, entered(to), d)
}

func sandboxEventOf(owner engi.Owner, id engi.SandboxID, after int, kind string, data map[string]any) engi.Event {
	b, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	return engi.Event{Owner: owner, Subject: string(id), Type: kind, Time: began.Add(time.Duration(after) * time.Second), Data: b}
}

// TestEveryLife walks every path of states that a sandbox can take. Whatever it
// is, clients hear of one creation, then of pauses and resumptions in turn, and
// of one end.
func TestEveryLife(t *testing.T) {
	id := engi.NewSandboxID()
	next := map[string][]string{
		"":            {lifeCreated},
		lifeCreated:   {lifePaused, lifeKilled},
		lifePaused:    {lifeResumed, lifeKilled},
		lifeResumed:   {lifePaused, lifeKilled},
		lifeKilled:    {},
		"never lived": {},
	}
	paths := 0
	var walk func(path []engi.State, ran bool, last string)
	walk = func(path []engi.State, ran bool, last string) {
		from := path[len(path)-1]
		if from == engi.Stopped {
			paths++
			if ran != (last == lifeKilled) {
				t.Errorf("%v ends with %q", path, last)
			}
			return
		}
		if len(path) > 11 {
			return
		}
		for _, to := range engi.States() {
			if from != "" {
				if _, err := from.To(to); err != nil {
					continue
				}
			} else if to != engi.Pending && to != engi.Starting && to != engi.Running {
				continue
			}
			now, ran := last, ran || to == engi.Running
			e := stateEvent("ann", id, 1, from, to)
			if !ran {
				e.Data = json.RawMessage(fmt.Sprintf(`{"from":%q}`, from))
			}
			if v, ok := lifecycleOf(e); ok {
				if now = v.Type; !slices.Contains(next[last], now) {
					t.Fatalf("%v %s: %s after %q", path, to, now, last)
				}
			}
			paused := to == engi.Paused || to == engi.Hibernating || to == engi.Hibernated || to == engi.Resuming
			if paused != (now == lifePaused) {
				t.Fatalf("%v %s: clients take it for %s", path, to, now)
			}
			walk(append(slices.Clone(path), to), ran, now)
		}
	}
	walk([]engi.State{""}, false, "")
	if paths < 100 {
		t.Errorf("only %d paths", paths)
	}
}

func TestLifecycleEvent(t *testing.T) {
	id := engi.NewSandboxID()
	data := func(more ...any) map[string]any {
		d := map[string]any{"template": "e2b-x", "started": began, "vcpus": 1.5, "memory": 512 << 20, "metadata": map[string]string{"app": "x"},
			"notes": map[string]string{registry.NoteTemplate: "tpl", registry.NoteFrom: "build"}}
		for i := 0; i < len(more); i += 2 {
			d[more[i].(string)] = more[i+1]
		}
		return d
	}
	execution := func(ms int64) *lifeExecution { return &lifeExecution{began, 2, 512, ms} }
	later := began.Add(time.Hour)
	app := map[string]string{"app": "x"}
	for name, c := range map[string]struct {
		kind string
		data map[string]any
		want string
		told lifeData
	}{
		"created":                {"sandbox.running", data("from", "ready"), lifeCreated, lifeData{Metadata: app}},
		"resumed":                {"sandbox.running", data("from", "resuming"), lifeResumed, lifeData{Metadata: app}},
		"paused":                 {"sandbox.paused", data("from", "running"), lifePaused, lifeData{Metadata: app, Execution: execution(90000)}},
		"hibernates":             {"sandbox.hibernating", data("from", "running"), lifePaused, lifeData{Metadata: app, Execution: execution(90000)}},
		"killed":                 {"sandbox.stopping", data("from", "running"), lifeKilled, lifeData{Metadata: app, Execution: execution(90000)}},
		"killed while paused":    {"sandbox.stopping", data("from", "hibernated"), lifeKilled, lifeData{Metadata: app, Execution: execution(0)}},
		"lost":                   {"sandbox.stopped", data("from", "running"), lifeKilled, lifeData{Metadata: app, Execution: execution(90000)}},
		"timeout":                {"sandbox.updated", data("changed", []string{"deadline"}, "deadline", later), lifeUpdated, lifeData{Metadata: app, SetTimeout: &later}},
		"timeout and more":       {"sandbox.updated", data("changed", []string{"deadline", "network"}, "deadline", later), lifeUpdated, lifeData{Metadata: app, SetTimeout: &later, Changed: []string{"network"}}},
		"metadata removed":       {"sandbox.updated", data("changed", []string{"metadata"}, "metadata", nil), lifeUpdated, lifeData{Metadata: map[string]string{}, Changed: []string{"metadata"}}},
		"snapshot":               {"sandbox.snapshotted", data("snapshot_id", "snp_x"), lifeCheckpointed, lifeData{Metadata: app, SnapshotID: "snp_x"}},
		"clock that went back":   {"sandbox.paused", data("from", "running", "started", began.Add(time.Hour)), lifePaused, lifeData{Metadata: app, Execution: &lifeExecution{began.Add(time.Hour), 2, 512, 0}}},
		"of a build":             {"sandbox.running", data("notes", map[string]string{registry.NoteBuild: "b"}), "", lifeData{}},
		"of an execution":        {"sandbox.running", map[string]any{"from": "ready", "execution_id": "exe_x"}, "", lifeData{}},
		"never ran":              {"sandbox.stopped", map[string]any{"from": "starting"}, "", lifeData{}},
		"end of the end":         {"sandbox.stopped", data("from", "stopping"), "", lifeData{}},
		"image is complete":      {"sandbox.hibernated", data("from", "hibernating"), "", lifeData{}},
		"some type of a sender":  {"sandbox.other", data(), "", lifeData{}},
		"something else":         {"volume.created", data(), "", lifeData{}},
		"data of another kind":   {"sandbox.running", map[string]any{"started": 7}, "", lifeData{}},
		"metadata of other kind": {"sandbox.running", data("metadata", []int{1}), "", lifeData{}},
	} {
		e := sandboxEventOf("ann", id, 90, c.kind, c.data)
		e.ID = "evt_x"
		got, ok := lifecycleOf(e)
		if ok != (c.want != "") {
			t.Errorf("%s: told %v", name, ok)
		}
		if !ok {
			continue
		}
		want := lifecycleEvent{Version: "v2", ID: "evt_x", Type: c.want, Data: c.told, BuildID: "build", SandboxID: id.Label(), TeamID: "ann", TemplateID: "tpl",
			ExecutionID: got.ExecutionID, Timestamp: began.Add(90 * time.Second)}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if len(got.ExecutionID) != 36 {
			t.Errorf("execution %q", got.ExecutionID)
		}
	}
	replay := stateEvent("ann", id, 1, "", engi.Running)
	if replay.Replay = "evt_y"; lifeTold(replay) {
		t.Error("a replay is told")
	}
	other := stateEvent("ann", "vol_x", 1, "", engi.Running)
	if lifeTold(other) {
		t.Error("a volume's is told")
	}
	a, _ := lifecycleOf(stateEvent("", id, 1, "", engi.Running))
	b, _ := lifecycleOf(stateEvent("", id, 5, engi.Running, engi.Paused))
	if a.ExecutionID != b.ExecutionID || a.TeamID != "engi" || a.TemplateID != "base" || a.BuildID != "base" {
		t.Errorf("%+v %+v", a, b)
	}
}

func lifeTold(e engi.Event) bool { _, ok := lifecycleOf(e); return ok }

func FuzzLifecycleEvent(f *testing.F) {
	f.Add("sandbox.running", `{"from":"ready","started":"2026-01-02T03:04:05Z"}`)
	f.Add("sandbox.stopping", `{"from":"running","started":"0001-01-02T03:04:05Z","vcpus":1e300,"memory":-1}`)
	id := string(engi.NewSandboxID())
	f.Fuzz(func(t *testing.T, kind, data string) {
		if v, ok := lifecycleOf(engi.Event{Subject: id, Type: kind, Time: began, Data: json.RawMessage(data)}); ok {
			if _, err := json.Marshal(v); err != nil {
				t.Errorf("%+v: %v", v, err)
			}
		}
	})
}

// types are those of an answer's events, without what all begin with.
func types(m map[string]any) string {
	var all []string
	for _, v := range m["list"].([]any) {
		all = append(all, strings.TrimPrefix(v.(map[string]any)["type"].(string), "sandbox.lifecycle."))
	}
	return strings.Join(all, " ")
}

func TestSandboxEvents(t *testing.T) {
	log := &eventList{}
	w := newFixture(t, func(o *Options) { o.Events = log })
	one, two, bens, busy := engi.NewSandboxID(), engi.NewSandboxID(), engi.NewSandboxID(), engi.NewSandboxID()
	for i, s := range [][2]engi.State{{"ready", "running"}, {"running", "hibernating"}, {"hibernating", "hibernated"}, {"hibernated", "resuming"},
		{"resuming", "running"}, {"running", "stopping"}, {"stopping", "stopped"}} {
		log.add(stateEvent("ann", one, i, s[0], s[1]))
		log.add(sandboxEventOf("ann", busy, i, entered(s[1]), map[string]any{"from": s[0], "execution_id": "exe_x"}))
	}
	log.add(stateEvent("ann", two, 60, "", engi.Running))
	log.add(stateEvent("ben", bens, 61, "", engi.Running))
	log.add(stateEvent("", engi.NewSandboxID(), 62, "", engi.Running))

	at := "/events/sandboxes/" + one.Label()
	for _, c := range []struct{ key, path, want string }{
		{"ann", at, "killed resumed paused created"}, // its record is gone
		{"look", at, "killed resumed paused created"},
		{"root", at, "killed resumed paused created"},
		{"ben", at, ""},
		{"ann", at + "?orderAsc=true", "created paused resumed killed"},
		{"ann", at + "-engi?orderAsc=true&limit=2", "created paused"},
		{"ann", at + "?orderAsc=true&limit=2&offset=2", "resumed killed"},
		{"ann", at + "?orderAsc=1&limit=2&offset=3", "killed"},
		{"ann", at + "?offset=4", ""},
		{"ann", at + "?offset=9223372036854775807", ""},
		{"ann", at + "?limit=1&offset=1&orderAsc=false", "resumed"},
		{"ann", at + "?types=" + lifeResumed, "resumed"},
		{"ann", at + "?types=" + lifeResumed + "&types=" + lifeKilled + "&types=" + lifeKilled, "killed resumed"},
		{"ann", at + "?types=" + lifeResumed + "," + lifeCreated, "resumed created"},
		{"ann", at + "?types=" + lifeCheckpointed, ""},
		{"ann", "/events/sandboxes", "created killed resumed paused created"},
		{"ann", "/events/sandboxes?limit=2", "created killed"},
		{"ben", "/events/sandboxes", "created"},
		{"root", "/events/sandboxes?limit=3", "created created created"},
		{"ann", "/events/sandboxes/" + busy.Label(), ""},
		{"ann", "/events/sandboxes/" + engi.NewSandboxID().Label(), ""},
		{"ann", "/events/sandboxes/x", ""},
		{"ann", "/events/sandboxes/%00%ff", ""},
		{"ann", "/events/sandboxes/" + url.PathEscape("' OR 1=1"), ""},
	} {
		if got := types(w.want(200, c.key, "GET", c.path, "")); got != c.want {
			t.Errorf("%s of %s: %q, want %q", c.path, c.key, got, c.want)
		}
	}
	for _, q := range []string{"offset=-1", "offset=x", "offset=9223372036854775808", "offset=1e3", "limit=0", "limit=101", "limit=-5", "limit=%00", "orderAsc=perhaps",
		"types=sandbox.running", "types=", "types=*", "types=" + lifeCreated + ",", "types=" + strings.Repeat("a", 5000), "offset=%2B1x"} {
		m := w.want(400, "ann", "GET", at+"?"+q, "")
		if text, _ := m["message"].(string); m["code"] != 400.0 || text == "" || len(text) > 400 {
			t.Errorf("%.40s: %v", q, m)
		}
	}
	w.want(401, "", "GET", at, "")
	w.want(401, "nobody", "GET", "/events/sandboxes", "")
	w.want(404, "ann", "GET", "/events", "")
}

// TestPagesOfEvents goes through a long log page by page.
func TestPagesOfEvents(t *testing.T) {
	log := &eventList{}
	w := newFixture(t, func(o *Options) { o.Events = log })
	id, n := engi.NewSandboxID(), 1050
	var want []string // oldest first
	for i := range n {
		e := stateEvent("ann", id, i, engi.Running, engi.Paused)
		if i%2 == 0 {
			e = stateEvent("ann", id, i, engi.Paused, engi.Running)
		}
		want = append(want, string(log.add(e).ID))
		log.add(stateEvent("ann", id, i, engi.Hibernating, engi.Hibernated)) // not told
		log.add(stateEvent("ann", engi.NewSandboxID(), i, "", engi.Running))
		if i%3 == 0 {
			log.add(sandboxEventOf("ann", id, i, entered(engi.Stopped), map[string]any{})) // not told, of a type that may be
		}
	}
	for _, asc := range []bool{true, false} {
		expect := slices.Clone(want)
		if !asc {
			slices.Reverse(expect)
		}
		for offset := 0; offset <= n; offset += 97 {
			m := w.want(200, "ann", "GET", fmt.Sprintf("/events/sandboxes/%s?limit=97&offset=%d&orderAsc=%v", id.Label(), offset, asc), "")
			var got []string
			for _, v := range m["list"].([]any) {
				got = append(got, v.(map[string]any)["id"].(string))
			}
			if d := cmp.Diff(expect[offset:min(offset+97, n)], got); d != "" {
				t.Fatalf("offset %d, ascending %v: %s", offset, asc, d)
			}
		}
	}
	log.read = 0
	w.want(200, "ann", "GET", "/events/sandboxes", "")
	if log.read > 10+eventPage {
		t.Errorf("%d events are read for ten", log.read)
	}
}

// webhookList is engi.Webhooks that only keeps them.
type webhookList struct {
	mu      sync.Mutex
	all     []engi.Webhook
	secrets map[engi.WebhookID]string
}

func (l *webhookList) Create(_ context.Context, spec engi.WebhookSpec) (engi.Webhook, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := checkURL(spec.URL); err != nil {
		return engi.Webhook{}, "", err
	}
	h := engi.Webhook{ID: engi.NewWebhookID(), Owner: spec.Owner, Name: spec.Name, URL: spec.URL, Types: spec.Types, Format: spec.Format, Enabled: !spec.Disabled, Created: began}
	l.all = append(l.all, h)
	l.secrets[h.ID] = spec.Secret
	return h, spec.Secret, nil
}

func checkURL(text string) error {
	if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return engi.Errorf(engi.Invalid, "url %.60q is not one of http or https", text)
	}
	return nil
}

// find returns the index of a webhook.
func (l *webhookList) find(viewer engi.Viewer, id engi.WebhookID) (int, error) {
	i := slices.IndexFunc(l.all, func(h engi.Webhook) bool { return h.ID == id && viewer.Sees(h.Owner) })
	if i < 0 {
		return 0, engi.Errorf(engi.NotFound, "there is no webhook %s", id)
	}
	return i, nil
}

func (l *webhookList) Get(_ context.Context, viewer engi.Viewer, id engi.WebhookID) (h engi.Webhook, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, err := l.find(viewer, id)
	if err == nil {
		h = l.all[i]
	}
	return h, err
}

func (l *webhookList) List(_ context.Context, viewer engi.Viewer, _ engi.Paging) (list []engi.Webhook, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.all {
		if viewer.Sees(h.Owner) {
			list = append(list, h)
		}
	}
	return list, nil
}

func (l *webhookList) Update(_ context.Context, viewer engi.Viewer, id engi.WebhookID, u engi.WebhookUpdate) (h engi.Webhook, secret string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, err := l.find(viewer, id)
	if err != nil {
		return h, "", err
	}
	h = l.all[i]
	if u.URL != nil {
		if err := checkURL(*u.URL); err != nil {
			return h, "", err
		}
		h.URL = *u.URL
	}
	if u.Name != nil {
		h.Name = *u.Name
	}
	if u.Types != nil {
		h.Types = *u.Types
	}
	if u.Enabled != nil {
		h.Enabled = *u.Enabled
	}
	if u.Secret != nil {
		l.secrets[id], secret = *u.Secret, *u.Secret
	}
	l.all[i] = h
	return h, secret, nil
}

func (l *webhookList) Remove(_ context.Context, viewer engi.Viewer, id engi.WebhookID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, err := l.find(viewer, id)
	if err == nil {
		l.all = slices.Delete(l.all, i, i+1)
	}
	return err
}

func (*webhookList) Deliveries(context.Context, engi.Viewer, engi.WebhookID, int) ([]engi.WebhookDelivery, error) {
	panic("not used")
}
func (*webhookList) Redeliver(context.Context, engi.Viewer, engi.WebhookID, engi.EventID) (engi.WebhookDelivery, error) {
	panic("not used")
}

func TestWebhooks(t *testing.T) {
	hooks := &webhookList{secrets: map[engi.WebhookID]string{}}
	w := newFixture(t, func(o *Options) { o.Webhooks = hooks })
	const made = `{"name":"mine","url":"https://a.test/x","events":["` + lifeCreated + `","` + lifeKilled + `","` + lifeCreated + `"],"signatureSecret":"hush"}`
	m := w.want(201, "ann", "POST", "/events/webhooks", made)
	id, _ := m["id"].(string)
	at := "/events/webhooks/" + id
	want := map[string]any{"id": id, "teamId": "ann", "name": "mine", "createdAt": began.Format(time.RFC3339), "enabled": true, "url": "https://a.test/x",
		"events": []any{lifeCreated, lifeKilled}}
	if d := cmp.Diff(want, m); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, w.want(200, "ann", "GET", at, "")); d != "" {
		t.Error(d)
	}
	if hooks.secrets[engi.WebhookID(id)] != "hush" {
		t.Errorf("the secret is %q", hooks.secrets[engi.WebhookID(id)])
	}
	standard, _, err := hooks.Create(t.Context(), engi.WebhookSpec{Owner: "ann", URL: "https://a.test", Format: engi.WebhookStandard})
	if err != nil {
		t.Fatal(err)
	}
	bens := w.want(201, "ben", "POST", "/events/webhooks", strings.Replace(made, `{`, `{"enabled":false,`, 1))
	if bens["enabled"] != false {
		t.Errorf("%v", bens)
	}
	for key, n := range map[string]int{"ann": 1, "ben": 1, "root": 2, "look": 1} {
		if got := len(w.want(200, key, "GET", "/events/webhooks", "")["list"].([]any)); got != n {
			t.Errorf("%s sees %d webhooks, want %d", key, got, n)
		}
	}
	for _, c := range []struct{ key, id string }{{"ben", id}, {"ann", bens["id"].(string)}, {"ann", string(standard.ID)}, {"ann", string(engi.NewWebhookID())},
		{"ann", "x"}, {"ann", "%00"}, {"ann", "sandboxes"}} {
		for _, method := range []string{"GET", "PATCH", "DELETE"} {
			w.want(404, c.key, method, "/events/webhooks/"+c.id, `{"enabled":false}`)
		}
	}
	w.want(403, "look", "DELETE", at, "")
	w.want(403, "look", "POST", "/events/webhooks", made)
	w.want(401, "", "GET", "/events/webhooks", "")

	// What is given replaces, the rest stays.
	want["enabled"], want["events"] = false, []any{lifePaused}
	if d := cmp.Diff(want, w.want(200, "ann", "PATCH", at, `{"enabled":false,"events":["`+lifePaused+`"],"name":null}`)); d != "" {
		t.Error(d)
	}
	want["url"], want["name"], want["enabled"] = "http://b.test", "other", true
	if d := cmp.Diff(want, w.want(200, "ann", "PATCH", at, `{"url":"http://b.test","name":"other","enabled":true,"signatureSecret":"new"}`)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, w.want(200, "ann", "PATCH", at, "")); d != "" {
		t.Error(d)
	}
	if hooks.secrets[engi.WebhookID(id)] != "new" {
		t.Errorf("the secret is %q", hooks.secrets[engi.WebhookID(id)])
	}
	for _, bad := range []string{`{"url":""}`, `{"url":"ftp://x"}`, `{"events":[]}`, `{"events":["sandbox.running"]}`, `{"events":["*"]}`, `{"signatureSecret":""}`,
		`{"events":"` + lifeCreated + `"}`, `{"enabled":"yes"}`, `[`} {
		w.want(400, "ann", "PATCH", at, bad)
	}
	for _, missing := range []string{"name", "url", "events", "signatureSecret"} {
		var all map[string]any
		if err := json.Unmarshal([]byte(made), &all); err != nil {
			t.Fatal(err)
		}
		delete(all, missing)
		b, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		if text, _ := w.want(400, "ann", "POST", "/events/webhooks", string(b))["message"].(string); !strings.Contains(text, missing) {
			t.Errorf("without %s: %s", missing, text)
		}
	}
	w.want(200, "ann", "DELETE", at, "")
	w.want(404, "ann", "GET", at, "")
	w.want(404, "ann", "DELETE", at, "")
}

func TestNeitherEventsNorWebhooks(t *testing.T) {
	w := newFixture(t)
	for _, path := range []string{"/events/sandboxes", "/events/sandboxes/x", "/events/webhooks", "/events/webhooks/x"} {
		m := w.want(http.StatusNotImplemented, "ann", "GET", path, "")
		if text, _ := m["message"].(string); !strings.Contains(text, ": GET /") {
			t.Errorf("%s: no remedy in %q", path, text)
		}
	}
}

func TestWebhookFormat(t *testing.T) {
	f := NewWebhookFormat()
	id := engi.NewSandboxID()
	created, resumed := stateEvent("ann", id, 1, engi.Ready, engi.Running), stateEvent("ann", id, 1, engi.Resuming, engi.Running)
	nothing := stateEvent("ann", id, 1, engi.Hibernated, engi.Resuming)
	for _, c := range []struct {
		types []string
		e     engi.Event
		want  bool
	}{
		{[]string{lifeCreated}, created, true},
		{[]string{lifeCreated}, resumed, false},
		{[]string{lifeResumed, lifeKilled}, created, false},
		{[]string{lifeResumed, lifeKilled}, resumed, true},
		{[]string{"sandbox.*", "sandbox.running"}, created, false},
		{nil, created, true},
		{nil, nothing, false},
		{lifeTypes, nothing, false},
	} {
		if got := f.Wants(engi.Webhook{Types: c.types}, c.e); got != c.want {
			t.Errorf("%v and %s %s: %v", c.types, c.e.Type, c.e.Data, got)
		}
	}

	hook, delivery := engi.Webhook{ID: engi.NewWebhookID()}, engi.NewFunctionRunID()
	body, header, err := f.Request(t.Context(), hook, "hush", delivery, created, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("hush" + string(body)))
	want := map[string]string{"Content-Type": "application/json", "e2b-webhook-id": string(hook.ID), "e2b-delivery-id": string(delivery), "e2b-signature-version": "v1",
		"e2b-signature": strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")}
	if d := cmp.Diff(want, header); d != "" {
		t.Error(d)
	}
	v, _ := lifecycleOf(created)
	var got lifecycleEvent
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(v, got); d != "" {
		t.Error(d)
	}
	again, _, err := f.Request(t.Context(), hook, "hush", delivery, created, time.Now().Add(time.Hour))
	if err != nil || string(again) != string(body) {
		t.Errorf("another attempt sends %s (%v)", again, err)
	}
	if _, _, err := f.Request(t.Context(), hook, "hush", delivery, nothing, time.Now()); !engi.Is(err, engi.Invalid) {
		t.Errorf("%v, want Invalid", err)
	}
	// printf 'secret{"a":1}' | openssl dgst -sha256 -binary | base64
	if got := webhookSignature("secret", []byte(`{"a":1}`)); got != "N7005LKS7534v+cOP1BSYTkklJDDwllM8gF1unZl4B0" {
		t.Errorf("signature %s", got)
	}
}
