package rest_test

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestAppsAreBranchedAndPublished(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	shop := read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{"name":"shop"}`), 201)
	if shop.Published != nil {
		t.Errorf("%+v", shop.Published)
	}
	const app = "/v1/apps/shop"
	applying(t, w, app, newApp)
	made := ask(t, w, "POST", app+"/branch", `{"name":"blue","revision":1}`)
	blue := read[v1.App](t, made, 201)
	if made.Header().Get("Location") != "/v1/apps/"+blue.ID || blue.Name != "blue" || blue.SandboxID == shop.SandboxID || blue.PreviewURL == "" {
		t.Errorf("%+v at %s", blue, made.Header().Get("Location"))
	}
	if revs := read[v1.List[v1.AppRevision]](t, ask(t, w, "GET", "/v1/apps/blue/revisions", ""), 200); len(revs.Items) != 1 || revs.Items[0].From != shop.ID || revs.Items[0].Of != 1 {
		t.Errorf("%+v", revs)
	}
	if x := read[v1.App](t, ask(t, w, "POST", app+"/branch", ""), 201); x.ID == blue.ID || x.Name == "" {
		t.Errorf("%+v", x)
	}
	refused(t, ask(t, w, "POST", app+"/branch", `{"name":"blue"}`), 409, engi.Conflict)
	refused(t, ask(t, w, "POST", app+"/branch", `{"revision":9}`), 404, engi.NotFound)

	refused(t, ask(t, w, "POST", app+"/rollback", `{"snapshot":true}`), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", app+"/branch", `{"snapshot":true}`), 404, engi.NotFound)
	if r := read[v1.AppRevision](t, ask(t, w, "POST", app+"/snapshot", ""), 201); r.Number != 2 || r.Snapshot == nil || r.Snapshot.Size != 100<<20 {
		t.Errorf("%+v", r)
	}
	if r := read[v1.AppRevision](t, ask(t, w, "POST", app+"/rollback", `{"snapshot":true}`), 200); r.Of != 2 || r.Snapshot != nil {
		t.Errorf("%+v", r)
	}
	if y := read[v1.App](t, ask(t, w, "GET", app, ""), 200); y.SandboxID == shop.SandboxID || y.PreviewURL != shop.PreviewURL {
		t.Errorf("%+v", y)
	}
	read[v1.AppRevision](t, ask(t, w, "POST", app+"/rollback", `{"revision":2}`), 200)
	read[v1.App](t, ask(t, w, "POST", app+"/branch", `{"revision":2,"snapshot":true}`), 201)

	if l := read[v1.AppLink](t, ask(t, w, "POST", app+"/link", `{"ttl":"10m"}`), 201); l.URL != shop.PreviewURL+"?token=x" || l.Private || time.Until(l.ExpiresAt) > 10*time.Minute || time.Until(l.ExpiresAt) < 9*time.Minute {
		t.Errorf("%+v", l)
	}
	secret := read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{"name":"secret","metadata":{"private":"1"}}`), 201)
	read[v1.App](t, ask(t, w, "POST", "/v1/apps/secret/stop", ""), 200) // its address stays
	if l := read[v1.AppLink](t, ask(t, w, "POST", "/v1/apps/"+secret.ID+"/link", ""), 201); l.URL != secret.PreviewURL+"?token=x" || !l.Private || time.Until(l.ExpiresAt) < 59*time.Minute {
		t.Errorf("%+v", l)
	}
	refused(t, ask(t, w, "POST", "/v1/apps/nosuch/link", ""), 404, engi.NotFound)

	live := watchPage(t, srv, w.User, app+"/stream")
	live.next() // the state
	refused(t, ask(t, w, "POST", app+"/publish/link", ""), 409, engi.Conflict)
	x := read[v1.App](t, ask(t, w, "POST", app+"/publish", ""), 200)
	if p := x.Published; p == nil || p.URL != "http://app-"+shop.ID[4:]+".localhost/" || p.Revision != 4 || p.Files != 1 || p.Bytes == 0 || p.Private || p.At.IsZero() {
		t.Errorf("%+v", x.Published)
	}
	if e := live.next(); e["event"] != "published" || !strings.Contains(e["data"], `"revision":4`) || e["id"] == "" {
		t.Errorf("%v", e)
	}
	if x := read[v1.App](t, ask(t, w, "POST", app+"/publish", `{"private":true}`), 200); !x.Published.Private {
		t.Errorf("%+v", x.Published)
	}
	if l := read[v1.Link](t, ask(t, w, "POST", app+"/publish/link", `{"ttl":"10m"}`), 201); !strings.HasPrefix(l.URL, x.Published.URL+"?") {
		t.Errorf("%+v", l)
	}
	for range 2 {
		if x := read[v1.App](t, ask(t, w, "POST", app+"/unpublish", ""), 200); x.Published != nil {
			t.Errorf("%+v", x.Published)
		}
	}
	read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{"name":"api","template":"node-api"}`), 201)
	if p := refused(t, ask(t, w, "POST", "/v1/apps/api/publish", ""), 409, engi.Conflict); p.Remedy == "" {
		t.Errorf("%+v", p)
	}
}
