package rest_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

const newApp = `<package>lucide-react</package>
<file path="src/App.jsx">
export default function App() { return <h1>Shop</h1> }
</file>
<file path="src/Cart.jsx">
export const Cart = () => null
</file>`

// applying asks to apply a text and returns the updates up to the end of that.
func applying(t *testing.T, w *apitest.Fixture, app, text string) []v1.AppUpdate {
	t.Helper()
	return updatesOf(t, w, app+"/apply", text, "Content-Type", "text/plain")
}

// updatesOf returns the stream that a request is answered with.
func updatesOf(t *testing.T, w *apitest.Fixture, path, body string, header ...string) (all []v1.AppUpdate) {
	t.Helper()
	rec := ask(t, w, "POST", path, body, append(header, "Accept", "application/x-ndjson")...)
	if rec.Code != 200 {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	for line := range strings.Lines(rec.Body.String()) {
		var u v1.AppUpdate
		if err := json.Unmarshal([]byte(line), &u); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, u)
	}
	return all
}

func TestAppIsEdited(t *testing.T) {
	w, _ := apitest.Serve(t, nil)
	ask(t, w, "POST", "/v1/apps", `{"name":"shop"}`)
	const edit = "/v1/apps/shop/edit"
	all := updatesOf(t, w, edit, `{"prompt":"<file path=\"a.js\">x</file>","max_rounds":2,"max_cost":0.5,"model":"openai:x","element":{"selector":"h1","path":"src/App.jsx","line":3}}`)
	first, last := all[0], all[len(all)-1]
	if first.Type != "edit" || first.Edit != first.Seq || last.Type != "edited" || last.Edit != first.Seq || last.Revision != 2 || last.Rounds != 1 || last.Round != 0 || last.Cost != 0.0015 || last.Error != nil {
		t.Errorf("from %+v to %+v", first, last)
	}
	for _, u := range all {
		if (u.Seq == 0) != (u.Type == v1.AppOutput) {
			t.Errorf("%+v", u)
		}
	}
	all = updatesOf(t, w, edit, `{"prompt":"fail"}`)
	if last := all[len(all)-1]; last.Type != "edited" || last.Revision != 0 || last.Error == nil || last.Error.Remedy == "" || last.Text == "" {
		t.Errorf("it ends with %+v", last)
	}
	if p := all[len(all)-2]; p.Type != "problem" || p.Source != "apply" || p.Line != 3 {
		t.Errorf("before it is %+v", p)
	}
	if x := read[v1.Applying](t, ask(t, w, "POST", edit, `{"prompt":"<file path=\"a.js\">y</file>"}`), 202); x.Seq <= first.Seq {
		t.Errorf("%+v", x)
	}
	all = updatesOf(t, w, edit, `{"prompt":"<file path=\"a.js\">z</file>","attempts":2,"model":"a:b","judge":{"command":"npm test"},"keep_attempts":true}`)
	if last := all[len(all)-1]; last.Type != "edited" || last.Attempt != 1 {
		t.Errorf("it ends with %+v", last)
	}
	if b, e, j := all[1], all[2], all[5]; b.Type != "attempt" || b.Attempt != 1 || b.Branch == "" || b.Name != "shop-1" || b.Model != "a:b" || b.PreviewURL == "" || e.Type != "attempted" || e.Rounds != 1 || e.Round != 0 || e.PreviewURL != "" || j.Type != "judged" || j.Text != "for npm test" {
		t.Errorf("%+v, %+v, %+v", b, e, j)
	}
	refused(t, ask(t, w, "POST", edit, `{"prompt":"x","model":"none"}`), 501, engi.Unsupported)
	refused(t, ask(t, w, "POST", "/v1/apps/other/edit", `{"prompt":"x"}`), 404, engi.NotFound)
	for _, body := range []string{`{}`, `{"prompt":" "}`, `{"prompt":"x","max_rounds":11}`, `{"prompt":"x","max_rounds":-1}`, `{"prompt":"x","max_cost":-1}`, `{"prompt":"x","max_cost":1e300}`, `{"prompt":"x","attempts":9}`, `{"prompt":"x","attempts":-1}`, `{"prompt":"` + strings.Repeat("x", 33<<10) + `"}`} {
		status := 400
		if len(body) > engi.MaxEditPrompt {
			status = 413
		}
		refused(t, ask(t, w, "POST", edit, body), status, engi.Invalid)
	}
}

func TestApps(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	made := ask(t, w, "POST", "/v1/apps", `{"name":"shop","metadata":{"a":"b"}}`)
	x := read[v1.App](t, made, 201)
	if made.Header().Get("Location") != "/v1/apps/"+x.ID || x.Owner != "ann" || x.State != v1.AppReady || x.Revision != 1 || !strings.Contains(x.PreviewURL, "-app-"+x.ID[4:]+".") {
		t.Errorf("%+v at %s", x, made.Header().Get("Location"))
	}
	refused(t, ask(t, w, "POST", "/v1/apps", `{"name":"shop"}`), 409, engi.Conflict)
	refused(t, ask(t, w, "POST", "/v1/apps", `{"template":"none"}`), 404, engi.NotFound)
	for _, body := range []string{`{"nmae":"x"}`, `{"name":"a b"}`, `{"env":{"A=":"x"}}`, `{"network":{"mode":"wide"}}`} {
		refused(t, ask(t, w, "POST", "/v1/apps", body), 400, engi.Invalid)
	}
	if x := read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{"template":"broken"}`), 201); x.State != v1.AppFailed || x.Error == nil || x.Error.Remedy == "" {
		t.Errorf("%+v", x)
	}
	if first := read[v1.List[v1.App]](t, ask(t, w, "GET", "/v1/apps?limit=1", ""), 200); first.Items[0].Template != "broken" || first.NextCursor == "" {
		t.Errorf("%+v", first)
	} else if second := read[v1.List[v1.App]](t, ask(t, w, "GET", "/v1/apps?cursor="+first.NextCursor, ""), 200); len(second.Items) != 1 || second.Items[0].ID != x.ID {
		t.Errorf("%+v", second)
	}

	const app = "/v1/apps/shop"
	live := watchPage(t, srv, w.User, app+"/stream")
	if e := live.next(); e["event"] != "state" || !strings.Contains(e["data"], `"state":"ready"`) || e["id"] == "" {
		t.Errorf("it begins with %v", e)
	}
	updates := applying(t, w, app, newApp)
	var kinds []string
	for _, u := range updates {
		kinds = append(kinds, u.Type)
		if (u.Seq == 0) != (u.Type == v1.AppLog) || u.Apply != updates[0].Seq {
			t.Errorf("%+v", u)
		}
	}
	if want := []string{"start", "progress", "progress", "log", "package", "progress", "file", "file", "progress", "done"}; !slices.Equal(kinds, want) {
		t.Errorf("%v, want %v", kinds, want)
	}
	if last := updates[len(updates)-1]; last.Revision != 2 || updates[6].Op != "write" || updates[7].Op != "create" {
		t.Errorf("%+v", updates)
	}
	for _, u := range updates { // those who watch see the same
		if e := live.next(); e["event"] != u.Type || u.Seq > 0 && e["id"] != fmt.Sprint(u.Seq) {
			t.Errorf("%v, want %+v", e, u)
		}
	}
	back := watchPage(t, srv, w.User, app+"/stream?after=1", "Last-Event-ID", fmt.Sprint(updates[7].Seq))
	if e := back.next(); e["id"] != fmt.Sprint(updates[8].Seq) {
		t.Errorf("after %d comes %v", updates[7].Seq, e)
	}

	failed := applying(t, w, app, "fail")
	if last := failed[len(failed)-1]; last.Type != v1.AppError || last.Seq == 0 || last.Line != 3 || last.Error == nil || last.Error.Kind != v1.Invalid {
		t.Errorf("%+v", last)
	}
	begun := read[v1.Applying](t, ask(t, w, "POST", app+"/apply", `{"text":"wait"}`), 202)
	if x := read[v1.App](t, ask(t, w, "GET", app, ""), 200); x.Applying != begun.Seq {
		t.Errorf("%+v while %+v", x, begun)
	}
	refused(t, ask(t, w, "POST", app+"/apply", `{"text":"x"}`), 409, engi.Conflict)
	refused(t, ask(t, w, "POST", app+"/rollback", ""), 409, engi.Conflict)
	if rec := ask(t, w, "POST", app+"/cancel", ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "POST", app+"/cancel", ""), 409, engi.Conflict)
	refused(t, ask(t, w, "POST", app+"/apply", `{"text":" "}`), 400, engi.Invalid)
	refused(t, ask(t, w, "POST", app+"/apply", strings.Repeat("x", 8<<20+1), "Content-Type", "text/plain; charset=utf-8"), 413, engi.Invalid)
	if rec := ask(t, w, "POST", app+"/apply", "x", "Content-Type", "text/html"); rec.Code != 415 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}

	diff := ask(t, w, "GET", app+"/diff", "")
	if !strings.Contains(diff.Body.String(), "+export const Cart") || diff.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s", diff.Body)
	}
	if r := read[v1.AppRevision](t, ask(t, w, "POST", app+"/rollback", ""), 200); r.Number != 3 || r.Of != 1 || len(r.Changed) != 2 || r.Changed[1].Op != "remove" {
		t.Errorf("%+v", r)
	}
	if rec := ask(t, w, "GET", app+"/files?path=src/Cart.jsx", ""); rec.Code != 404 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	read[v1.AppRevision](t, ask(t, w, "POST", app+"/rollback", `{"revision":2}`), 200)
	if rec := ask(t, w, "GET", app+"/files?path=src/Cart.jsx", ""); rec.Body.String() != "export const Cart = () => null\n" || rec.Header().Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "POST", app+"/rollback", `{"revision":9}`), 404, engi.NotFound)
	history := read[v1.List[v1.AppRevision]](t, ask(t, w, "GET", app+"/revisions?limit=3", ""), 200)
	if len(history.Items) != 3 || history.Items[0].Number != 4 || history.Items[2].Message != "Changed src/App.jsx" || history.Items[2].Actor == "" || history.NextCursor != "2" {
		t.Errorf("%+v", history)
	}

	rec := ask(t, w, "GET", app+"/zip", "")
	z, err := zip.NewReader(bytes.NewReader(rec.Body.Bytes()), int64(rec.Body.Len()))
	if err != nil || len(z.File) != 4 || rec.Header().Get("Content-Disposition") != "attachment; filename=shop.zip" {
		t.Errorf("%v, %v", err, rec.Header())
	}
	if logs := read[v1.AppLogs](t, ask(t, w, "GET", app+"/logs?max=3", ""), 200); logs.Text != "ms\n" || !logs.Truncated || len(logs.Faults) != 1 || logs.Faults[0] != (v1.AppFault{Source: "browser", Path: "src/App.tsx", Line: 3, Text: "x is not defined"}) {
		t.Errorf("%+v", logs)
	} else if since := read[v1.AppLogs](t, ask(t, w, "GET", app+"/logs?after="+logs.Mark, ""), 200); since.Text != "" {
		t.Errorf("%+v", since)
	}
	if s := read[v1.AppStatus](t, ask(t, w, "GET", app+"/status", ""), 200); !s.Healthy || s.Files != 4 || s.App.PreviewURL == "" || len(s.Alerts) != 1 || s.Alerts[0].Action != "restart_server" || s.Alerts[0].Since.IsZero() || s.FileTime == 0 {
		t.Errorf("%+v", s)
	}
	if x := read[v1.App](t, ask(t, w, "POST", app+"/stop", ""), 200); x.State != v1.AppStopped || x.PreviewURL != "" {
		t.Errorf("%+v", x)
	}
	refused(t, ask(t, w, "GET", app+"/logs", ""), 409, engi.Conflict)
	if x := read[v1.App](t, ask(t, w, "POST", app+"/open", ""), 200); x.State != v1.AppReady || x.PreviewURL == "" {
		t.Errorf("%+v", x)
	}
	if rec := ask(t, w, "DELETE", app, ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "GET", app, ""), 404, engi.NotFound)
}

// TestAppFilesAreSelected lists files by directory, pattern, ending and size.
func TestAppFilesAreSelected(t *testing.T) {
	w := newFixture(t, nil)
	read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{"name":"shop"}`), 201)
	big := strings.Repeat("b", 3<<20)
	applying(t, w, "/v1/apps/shop", newApp+`<file path="a.css">`+big+`</file><file path="b.css">`+big+`</file><file path="src/x.bin">`+"\xff"+`</file><file path="srcs/y.css">y</file>`)
	for query, want := range map[string]string{
		"":                    "a.css b.css index.html package.json src/App.jsx src/Cart.jsx src/x.bin srcs/y.css",
		"path=src":            "src/App.jsx src/Cart.jsx src/x.bin",
		"path=/src/":          "src/App.jsx src/Cart.jsx src/x.bin",
		"path=*.json":         "package.json",
		"path=src/*.jsx":      "src/App.jsx src/Cart.jsx",
		"path=../..":          "",
		"extensions=.css":     "a.css b.css srcs/y.css",
		"max_size=1":          "src/x.bin srcs/y.css",
		"revision=1":          "index.html package.json src/App.jsx",
		"content=true":        "a.css b.css index.html package.json src/App.jsx src/Cart.jsx src/x.bin srcs/y.css",
		"path=src&revision=1": "src/App.jsx",
	} {
		x := read[v1.AppFiles](t, ask(t, w, "GET", "/v1/apps/shop/files/list?"+query, ""), 200)
		var names []string
		for _, f := range x.Items {
			names = append(names, f.Path)
			has := f.Content != nil || f.ContentBase64 != nil
			if wants := query == "content=true" && f.Path != "b.css"; has != wants || f.Content != nil && int(f.Size) != len(*f.Content) || (f.ContentBase64 != nil) != (wants && f.Path == "src/x.bin") {
				t.Errorf("%s: %s has content %v", query, f.Path, has)
			}
		}
		if strings.Join(names, " ") != want || x.Truncated != (query == "content=true") || x.Revision == 0 {
			t.Errorf("%s: %v in revision %d, truncated %v", query, names, x.Revision, x.Truncated)
		}
	}
	refused(t, ask(t, w, "GET", "/v1/apps/shop/files/list?path=%5B", ""), 400, engi.Invalid)
	refused(t, ask(t, w, "GET", "/v1/apps/shop/files/list?revision=7", ""), 404, engi.NotFound)
}

// TestAppManifest has what a node knows of an app, in JSON.
func TestAppManifest(t *testing.T) {
	w := newFixture(t, nil)
	x := read[v1.App](t, ask(t, w, "POST", "/v1/apps", `{"name":"shop"}`), 201)
	applying(t, w, "/v1/apps/shop", newApp)
	m := read[v1.AppManifest](t, ask(t, w, "GET", "/v1/apps/shop/manifest", ""), 200)
	if m.AppID != x.ID || m.Revision != 2 || m.Entry != "src/App.jsx" || len(m.Files) != 4 || len(m.Components) != 2 || m.Packages["react"] == "" || len(m.Routes) != 1 {
		t.Errorf("%+v", m)
	}
	if f := m.Files[3]; f.Path != "src/Cart.jsx" || f.SHA256 == "" || f.Size == 0 || f.Since != 2 || f.Imports[0].Package != "react" || f.Exports[0] != "default" {
		t.Errorf("%+v", f)
	}
	// Lists are there when they are empty.
	if rec := ask(t, w, "GET", "/v1/apps/shop/manifest?revision=1", ""); !strings.Contains(rec.Body.String(), `"styles":[]`) || !strings.Contains(rec.Body.String(), `"problems":[]`) || !strings.Contains(rec.Body.String(), `"revision":1`) {
		t.Errorf("%s", rec.Body)
	}
	refused(t, ask(t, w, "GET", "/v1/apps/shop/manifest?revision=7", ""), 404, engi.NotFound)
}

// TestNodesWithoutApps holds that every route says what to do instead.
func TestNodesWithoutApps(t *testing.T) {
	w := newFixture(t, func(o *apitest.Options) { o.Apps = nil })
	for _, r := range w.Handler.Routes() {
		method, path, _ := strings.Cut(r.Pattern, " ")
		if !strings.HasPrefix(path, "/v1/apps") {
			continue
		}
		var rec *httptest.ResponseRecorder
		if rec = ask(t, w, method, strings.ReplaceAll(path, "{id}", "x"), ""); rec.Code != 501 || !strings.Contains(rec.Body.String(), "/v1/sandboxes") {
			t.Errorf("%s: %d %s", r.Pattern, rec.Code, rec.Body)
		}
	}
}
