package rest_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

const newShop = `{"name":"shop","services":[{"type":"postgres"},{"type":"redis","name":"cache"}],"files":[{"path":"README.md","content":"# Shop\n"}]}`

func TestWorkspaces(t *testing.T) {
	w := newFixture(t, nil)
	made := ask(t, w, "POST", "/v1/workspaces", newShop)
	x := read[v1.Workspace](t, made, 201)
	if made.Header().Get("Location") != "/v1/workspaces/"+x.ID || x.Owner != "ann" || x.State != v1.WorkspaceStopped || x.Revision != 1 || len(x.Services) != 2 || x.Services[1].Host != "postgres.workspace.internal" {
		t.Errorf("%+v at %s", x, made.Header().Get("Location"))
	}
	refused(t, ask(t, w, "POST", "/v1/workspaces", newShop), 409, engi.Conflict)
	for _, body := range []string{
		`{"nmae":"x"}`, `{"name":"a b"}`, `{"services":[{"type":"oracle"}]}`, `{"services":[{}]}`, `{"services":[{"type":"redis","env":{"A=":"x"}}]}`, `{"files":[{"path":"/etc/x","content":""}]}`,
		`{"files":[{"path":"a"}]}`, `{"files":[{"path":"a","content":"a","content_base64":"YQ=="}]}`, `{"files":[{"path":"a","content":"a","removed":true}]}`,
		`{"collaborators":[{"owner":"bob","role":"owner"}]}`, `{"collaborators":[{"owner":"bob"}]}`, `{"collaborators":[{"role":"viewer"}]}`, `{"metadata":{"":"x"}}`,
	} {
		refused(t, ask(t, w, "POST", "/v1/workspaces", body), 400, engi.Invalid)
	}
	if p := refused(t, ask(t, w, "POST", "/v1/workspaces", `{"services":[{"type":"postgre"}]}`), 400, engi.Invalid); !strings.HasPrefix(p.Detail, "services[0].type: ") || !strings.Contains(p.Detail, `did you mean "postgres"`) {
		t.Errorf("%+v", p)
	}

	const shop = "/v1/workspaces/shop"
	if x := read[v1.Workspace](t, ask(t, w, "POST", shop+"/start", ""), 200); x.State != v1.WorkspaceRunning || x.SandboxID == "" {
		t.Errorf("%+v", x)
	}
	if x := read[v1.Workspace](t, ask(t, w, "PATCH", shop, `{"metadata":{"a":"b"}}`), 200); x.Metadata["a"] != "b" {
		t.Errorf("%+v", x)
	}
	if x := read[v1.Workspace](t, ask(t, w, "PATCH", shop, `{"collaborators":[{"owner":"bob","role":"viewer"}]}`), 200); len(x.Collaborators) != 1 || x.Metadata["a"] != "b" {
		t.Errorf("%+v", x)
	}
	if x := read[v1.Workspace](t, ask(t, w, "PATCH", shop, `{"metadata":{}}`), 200); len(x.Collaborators) != 1 || len(x.Metadata) != 0 {
		t.Errorf("%+v", x)
	}
	if x := read[v1.Workspace](t, ask(t, w, "PATCH", shop, `{"share":[{"owner":"eve","role":"editor"}],"unshare":["bob"]}`), 200); len(x.Collaborators) != 1 || x.Collaborators[0].Owner != "eve" {
		t.Errorf("%+v", x)
	}
	for _, c := range []struct {
		body, want string
	}{
		{`{"preview":{"type":"static","root":"dist"}}`, `{"url":"http://ws-LABEL.localhost/","type":"static","root":"dist","public":false}`},
		{`{"preview":{"type":"proxy","port":3000,"public":true}}`, `{"url":"http://ws-LABEL.localhost/","type":"proxy","port":3000,"public":true}`},
		{`{"preview":{"type":"websocket","port":3000}}`, `{"url":"ws://ws-LABEL.localhost/","type":"websocket","port":3000,"public":false}`},
		{`{"preview":{"type":"none"}}`, `null`},
	} {
		x := read[v1.Workspace](t, ask(t, w, "PATCH", shop, c.body), 200)
		got, err := json.Marshal(x.Preview)
		if want := strings.ReplaceAll(c.want, "LABEL", strings.TrimPrefix(x.ID, "wsp_")); err != nil || string(got) != want {
			t.Errorf("%s: %s, not %s", c.body, got, want)
		}
		switch p := ask(t, w, "POST", shop+"/link", ""); {
		case x.Preview == nil:
			refused(t, p, 409, engi.Conflict)
		case read[v1.Link](t, p, 201).URL != x.Preview.URL+"?token=x":
			t.Errorf("%s: another link", c.body)
		}
	}
	many := strings.Repeat(`,{"owner":"x","role":"viewer"}`, 101)[1:]
	for _, bad := range []string{`{"collaborators":[` + many + `]}`, `{"share":[` + many + `]}`, `{"unshare":[` + strings.Repeat(`,"x"`, 101)[1:] + `]}`, `{"preview":{}}`, `{"preview":{"type":"magic"}}`, `{"preview":{"type":"static","rot":"x"}}`} {
		refused(t, ask(t, w, "PATCH", shop, bad), 400, engi.Invalid)
	}
	read[v1.Service](t, ask(t, w, "POST", shop+"/services", `{"type":"nginx","exposed":true}`), 201)
	if x := read[v1.Workspace](t, ask(t, w, "GET", shop, ""), 200); !slices.ContainsFunc(x.Services, func(s v1.Service) bool {
		return s.URL == "http://ws-"+strings.TrimPrefix(x.ID, "wsp_")+"-nginx.localhost/"
	}) {
		t.Errorf("%+v", x.Services)
	}
	if link := read[v1.Link](t, ask(t, w, "POST", shop+"/link", `{"service":"nginx","ttl":"1m"}`), 201); !strings.HasSuffix(link.URL, "-nginx.localhost/?token=x") {
		t.Errorf("%+v", link)
	}
	if rec := ask(t, w, "GET", shop+"/services/nginx/connect", ""); rec.Code != http.StatusUpgradeRequired || rec.Header().Get("Upgrade") != "websocket" {
		t.Errorf("without a WebSocket: %d %v", rec.Code, rec.Header())
	}
	refused(t, ask(t, w, "GET", shop+"/services/postgres/connect", "", "Connection", "Upgrade", "Upgrade", "websocket"), 409, engi.Conflict)
	refused(t, ask(t, w, "GET", shop+"/services/none/connect", "", "Connection", "Upgrade", "Upgrade", "websocket"), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", shop+"/link", `{"service":"postgres"}`), 409, engi.Conflict)
	refused(t, ask(t, w, "POST", shop+"/link", `{"service":"none"}`), 404, engi.NotFound)
	read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{}`), 201)
	if first := read[v1.List[v1.Workspace]](t, ask(t, w, "GET", "/v1/workspaces?limit=1", ""), 200); len(first.Items) != 1 || first.NextCursor == "" {
		t.Errorf("%+v", first)
	} else if second := read[v1.List[v1.Workspace]](t, ask(t, w, "GET", "/v1/workspaces?cursor="+first.NextCursor, ""), 200); len(second.Items) != 1 || second.Items[0].ID != x.ID {
		t.Errorf("%+v", second)
	}
	for range 2 {
		if x := read[v1.Workspace](t, ask(t, w, "POST", shop+"/stop", ""), 200); x.State != v1.WorkspaceStopped || x.SandboxID != "" || x.Services[0].State != v1.ServiceStopped {
			t.Errorf("%+v", x)
		}
	}
	refused(t, ask(t, w, "POST", shop+"/query", `{"text":"select 1 as n"}`), 503, engi.Unavailable)
	if rec := ask(t, w, "DELETE", shop, ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "GET", shop, ""), 404, engi.NotFound)

	none := newFixture(t, func(o *apitest.Options) { o.Workspaces = nil })
	refused(t, ask(t, none, "GET", "/v1/workspaces", ""), 501, engi.Unsupported)
}

func TestWorkspaceFiles(t *testing.T) {
	w := newFixture(t, nil)
	read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", newShop), 201)
	const shop = "/v1/workspaces/shop"
	octets := []string{"Content-Type", "application/octet-stream"}
	r := read[v1.WorkspaceRevision](t, ask(t, w, "PUT", shop+"/files?path=src/run.sh&mode=0755&message=Run", "echo \xff\n", octets...), 200)
	if d := gocmp.Diff([]v1.AppChange{{Path: "src/run.sh", Op: "create", Size: 7}}, r.Changed); r.Number != 2 || r.Message != "Run" || !strings.HasPrefix(r.Actor, "key_") || d != "" {
		t.Errorf("%+v %s", r, d)
	}
	body := fmt.Sprintf(`{"files":[{"path":"README.md","content":"# Store\n"},{"path":"a.bin","content_base64":%q}],"message":"Rename","base":2}`, base64.StdEncoding.EncodeToString([]byte{0xff}))
	if r := read[v1.WorkspaceRevision](t, ask(t, w, "POST", shop+"/files", body), 200); r.Number != 3 || len(r.Changed) != 2 || r.Message != "Rename" {
		t.Errorf("%+v", r)
	}
	refused(t, ask(t, w, "POST", shop+"/files", body), 409, engi.Conflict) // which has seen revision 2
	refused(t, ask(t, w, "PUT", shop+"/files?path=README.md&base=2", "x", octets...), 409, engi.Conflict)
	refused(t, ask(t, w, "DELETE", shop+"/files?path=README.md&base=2", ""), 409, engi.Conflict)
	for _, body := range []string{`{}`, `{"files":[]}`, `{"files":[{"path":"../x","content":""}]}`, `{"files":[{"path":"a","content":"a","mode":644}]}`, `{"files":[{"path":"a","content":"a"}],"message":"` + strings.Repeat("x", 201) + `"}`, `{"files":[` + strings.Repeat(`{"path":"a","content":""},`, 10_000) + `{"path":"a","content":""}]}`} {
		refused(t, ask(t, w, "POST", shop+"/files", body), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "PUT", shop+"/files?path=a&mode=9", "x", octets...), 400, engi.Invalid)
	refused(t, ask(t, w, "PUT", shop+"/files?path=/a", "x", octets...), 400, engi.Invalid)
	refused(t, ask(t, w, "PUT", "/v1/workspaces/other/files?path=a", strings.Repeat("x", 17<<20), octets...), 404, engi.NotFound)
	if rec := ask(t, w, "PUT", shop+"/files?path=a", strings.Repeat("x", 17<<20), octets...); rec.Code != 413 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}

	paths := func(query string) string {
		var all []string
		for _, f := range read[v1.List[v1.WorkspaceFile]](t, ask(t, w, "GET", shop+"/files/list"+query, ""), 200).Items {
			all = append(all, fmt.Sprintf("%s %d %s", f.Path, f.Size, f.Mode))
		}
		return strings.Join(all, ", ")
	}
	for query, want := range map[string]string{
		"": "README.md 8 0644, a.bin 1 0644, src/run.sh 7 0755", "?path=src/": "src/run.sh 7 0755", "?path=*.md": "README.md 8 0644", "?revision=1": "README.md 7 0644", "?path=none": "",
	} {
		if got := paths(query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	refused(t, ask(t, w, "GET", shop+"/files/list?path=[", ""), 400, engi.Invalid)
	if rec := ask(t, w, "GET", shop+"/files?path=src/run.sh", ""); rec.Body.String() != "echo \xff\n" || rec.Header().Get("Content-Disposition") == "" {
		t.Errorf("%d %q %v", rec.Code, rec.Body, rec.Header())
	}
	if rec := ask(t, w, "GET", shop+"/files?path=README.md&revision=1", "", "Range", "bytes=2-5"); rec.Code != 206 || rec.Body.String() != "Shop" {
		t.Errorf("%d %q", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "GET", shop+"/files?path=none", ""), 404, engi.NotFound)
	refused(t, ask(t, w, "GET", shop+"/files?path=README.md&revision=9", ""), 404, engi.NotFound)

	if rec := ask(t, w, "GET", shop+"/diff?from=1", ""); !strings.Contains(rec.Body.String(), "-# Shop\n+# Store\n") || rec.Header().Get("Content-Security-Policy") == "" {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if r := read[v1.WorkspaceRevision](t, ask(t, w, "POST", shop+"/restore", `{"revision":1,"path":"README.md"}`), 200); r.Number != 4 || r.Of != 1 || len(r.Changed) != 1 {
		t.Errorf("%+v", r)
	}
	if lines := read[v1.List[v1.BlameLine]](t, ask(t, w, "GET", shop+"/blame?path=README.md", ""), 200).Items; len(lines) != 1 || lines[0].Revision != 4 || lines[0].Text != "# Shop" {
		t.Errorf("%+v", lines)
	}
	if r := read[v1.WorkspaceRevision](t, ask(t, w, "DELETE", shop+"/files?path=src/run.sh", ""), 200); r.Number != 5 || r.Changed[0].Op != "remove" {
		t.Errorf("%+v", r)
	}
	refused(t, ask(t, w, "DELETE", shop+"/files?path=src/run.sh", ""), 404, engi.NotFound)
	for body, want := range map[string]engi.Kind{
		`{"from":"none","to":"b"}`: engi.NotFound, `{"from":"README.md","to":"a.bin"}`: engi.Conflict, `{"from":"README.md","to":"b","base":3}`: engi.Conflict, `{"from":"README.md"}`: engi.Invalid, `{"to":"b"}`: engi.Invalid,
		`{"from":"README.md","to":"b","message":"` + strings.Repeat("x", 201) + `"}`: engi.Invalid,
	} {
		rec := ask(t, w, "POST", shop+"/files/move", body)
		refused(t, rec, rec.Code, want)
	}
	if r := read[v1.WorkspaceRevision](t, ask(t, w, "POST", shop+"/files/move", `{"from":"README.md","to":"docs/README.md","message":"Tidy up","base":5}`), 200); r.Number != 6 || r.Message != "Tidy up" || !strings.HasPrefix(r.Actor, "key_") || len(r.Changed) != 2 {
		t.Errorf("%+v", r)
	}
	first := read[v1.List[v1.WorkspaceRevision]](t, ask(t, w, "GET", shop+"/revisions?limit=2", ""), 200)
	if len(first.Items) != 2 || first.Items[0].Number != 6 || first.NextCursor != "5" {
		t.Errorf("%+v", first)
	}
	if rest := read[v1.List[v1.WorkspaceRevision]](t, ask(t, w, "GET", shop+"/revisions?cursor=5", ""), 200); len(rest.Items) != 4 {
		t.Errorf("%+v", rest)
	}
}

func TestWorkspaceServices(t *testing.T) {
	w := newFixture(t, nil)
	read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"name":"shop"}`), 201)
	const services = "/v1/workspaces/shop/services"
	if s := read[v1.Service](t, ask(t, w, "POST", services, `{"type":"mysql","version":"10.11","exposed":true}`), 201); s.Name != "mysql" || s.Server != "MariaDB 10.11" || s.State != v1.ServiceHealthy || s.Port != 3306 || !s.Exposed || s.StartedAt == nil {
		t.Errorf("%+v", s)
	}
	if s := read[v1.Service](t, ask(t, w, "POST", services, `{"type":"nginx","name":"web","version":"broken","needs":["mysql"]}`), 201); s.State != v1.ServiceFailed || s.Error == nil || s.Error.Remedy == "" || len(s.Needs) != 1 {
		t.Errorf("%+v", s)
	}
	refused(t, ask(t, w, "POST", services, `{"type":"mysql"}`), 409, engi.Conflict)
	refused(t, ask(t, w, "POST", services, `{"type":"redis","version":"99"}`), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", services, `{"type":"redis","name":"A b"}`), 400, engi.Invalid)
	if all := read[v1.List[v1.Service]](t, ask(t, w, "GET", services, ""), 200).Items; len(all) != 2 || all[0].Name != "mysql" {
		t.Errorf("%+v", all)
	}
	for _, s := range read[v1.List[v1.Service]](t, ask(t, w, "GET", services, ""), 200).Items {
		if has := s.Use != nil; has != (s.State == v1.ServiceHealthy) || has && (s.Use.CPUTime.Std() != 1500*time.Millisecond || s.Use.Memory != 48<<20 || s.Use.DiskLimit != 4<<30) {
			t.Errorf("%s uses %+v", s.Name, s.Use)
		}
	}
	if s := read[v1.Service](t, ask(t, w, "POST", services+"/mysql/restart", ""), 200); s.State != v1.ServiceHealthy {
		t.Errorf("%+v", s)
	}
	if c := read[v1.Connection](t, ask(t, w, "GET", services+"/mysql/connection", ""), 200); c.URL != "mysql://engi:secret@mysql.workspace.internal/engi" || c.Password != "secret" {
		t.Errorf("%+v", c)
	}
	if l := read[v1.ServiceLogs](t, ask(t, w, "GET", services+"/mysql/logs?max=12", ""), 200); l.Text != "connections\n" {
		t.Errorf("%+v", l)
	}
	if rec := ask(t, w, "DELETE", services+"/mysql", ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "GET", services+"/mysql/logs", ""), 404, engi.NotFound)

	// What a repeated key added may be gone.
	key := []string{"Idempotency-Key", "k"}
	read[v1.Service](t, ask(t, w, "POST", services, `{"type":"redis"}`, key...), 201)
	ask(t, w, "DELETE", services+"/redis", "")
	refused(t, ask(t, w, "POST", services, `{"type":"redis"}`, key...), 409, engi.Conflict)
}

// databases remember the last queries.
type databases struct {
	*apitest.Workspaces
	last  engi.Query
	found engi.DocumentQuery
}

func (d *databases) Documents(ctx context.Context, q engi.DocumentQuery) (engi.DocumentResult, error) {
	d.found = q
	return d.Workspaces.Documents(ctx, q)
}

func (d *databases) Query(ctx context.Context, q engi.Query) (engi.QueryResult, error) {
	d.last = q
	return d.Workspaces.Query(ctx, q)
}

func TestWorkspaceDatabases(t *testing.T) {
	asked := &databases{Workspaces: &apitest.Workspaces{}}
	w := newFixture(t, func(o *apitest.Options) { o.Workspaces = asked })
	read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", newShop), 201)
	const shop = "/v1/workspaces/shop"
	rec := ask(t, w, "POST", shop+"/query", `{"text":"select 42 as n"}`)
	if x := read[v1.QueryResult](t, rec, 200); len(x.Rows) != 1 || string(x.Rows[0][0]) != "42" || x.Affected == nil || x.Error != nil {
		t.Errorf("%+v", x)
	}
	if !strings.Contains(rec.Body.String(), `"columns":[{"name":"n","type":"int4"}],"rows":[[42]]`) {
		t.Errorf("%s", rec.Body)
	}
	if x := read[v1.QueryResult](t, ask(t, w, "POST", shop+"/query", `{"text":"select $1 as n","args":[9007199254740993,1.5,"a",null,{"a":[1]}],"service":"postgres","database":"d","read_only":true,"max_rows":7,"max_bytes":"1MiB","timeout":"5s"}`), 200); string(x.Rows[0][0]) != "9007199254740993" {
		t.Errorf("%+v", x)
	}
	want := engi.Query{
		Viewer: "ann", Workspace: "shop", Service: "postgres", Text: "select $1 as n", ReadOnly: true, Database: "d", MaxRows: 7, MaxBytes: 1 << 20, Timeout: 5 * time.Second,
		Args: []any{json.Number("9007199254740993"), json.Number("1.5"), "a", nil, map[string]any{"a": []any{json.Number("1")}}},
	}
	if d := gocmp.Diff(want, asked.last); d != "" {
		t.Error(d)
	}
	if x := read[v1.QueryResult](t, ask(t, w, "POST", shop+"/query", `{"text":"select fail"}`), 200); x.Error == nil || x.Error.Code != "42601" || x.Error.Position != 8 || x.Rows == nil || x.Affected != nil {
		t.Errorf("%+v", x)
	}
	for _, body := range []string{`{}`, `{"text":" "}`, `{"text":"x","max_rows":-1}`, `{"text":"x","max_rows":100001}`, `{"text":"x","max_bytes":"17MiB"}`, `{"text":"x","timeout":"11m"}`, `{"text":"x","args":[` + strings.Repeat("1,", 10_000) + `1]}`} {
		for _, route := range []string{"/query", "/explain"} {
			refused(t, ask(t, w, "POST", shop+route, body), 400, engi.Invalid)
		}
	}
	for _, route := range []string{"/query", "/explain"} {
		refused(t, ask(t, w, "POST", shop+route, `{"text":"`+strings.Repeat("x", 1<<20+1)+`"}`), 413, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", shop+"/query", `{"text":"x","service":"none"}`), 404, engi.NotFound)
	if x := read[v1.QueryPlan](t, ask(t, w, "POST", shop+"/explain", `{"text":"select 42 as n"}`), 200); !strings.HasPrefix(x.Text, "Result") {
		t.Errorf("%+v", x)
	}
	if all := read[v1.List[v1.Table]](t, ask(t, w, "GET", shop+"/tables", ""), 200).Items; len(all) != 2 || *all[0].Rows != 3 || *all[0].Size != 32<<10 || all[1].Rows != nil || all[1].Size != nil {
		t.Errorf("%+v", all)
	}
	if x := read[v1.TableDescription](t, ask(t, w, "GET", shop+"/tables/public.orders?service=postgres", ""), 200); x.Table.Name != "orders" || len(x.Columns) != 2 || !x.Columns[1].Nullable || !x.Indexes[0].Primary || x.Constraints[0].Kind != "primary key" {
		t.Errorf("%+v", x)
	}
	refused(t, ask(t, w, "GET", shop+"/tables/a%2Fb", ""), 404, engi.NotFound)
	for body, want := range map[string]string{`{"args":["SET","a","b"]}`: `"OK"`, `{"args":["GET","none"]}`: `null`, `{"args":["NOPE"]}`: `{"error":"ERR unknown command"}`} {
		if x := read[v1.CommandReply](t, ask(t, w, "POST", shop+"/services/cache/command", body), 200); string(x.Reply) != want || x.Refused != strings.Contains(want, "error") {
			t.Errorf("%s: %+v, want %s", body, x, want)
		}
	}
	refused(t, ask(t, w, "POST", shop+"/services/cache/command", `{"args":[]}`), 400, engi.Invalid)
	refused(t, ask(t, w, "POST", shop+"/services/postgres/command", `{"args":["PING"]}`), 400, engi.Invalid)

	refused(t, ask(t, w, "POST", shop+"/documents", `{"collection":"orders"}`), 404, engi.NotFound)
	read[v1.Service](t, ask(t, w, "POST", shop+"/services", `{"type":"mongodb"}`), 201)
	rec = ask(t, w, "POST", shop+"/documents", `{"collection":"orders","service":"mongodb","database":"d","filter":{"a":{"$gt":9007199254740993}},"projection":{"a":1},"sort":{"b":-1,"a":1},"skip":2,"max_rows":1,"max_bytes":"1MiB","timeout":"5s"}`)
	if x := read[v1.CollectionResult](t, rec, 200); len(x.Documents) != 1 || !x.Truncated || x.Error != nil || !strings.Contains(rec.Body.String(), `"documents":[{"_id":{"$oid":"665f1c2b9d3e4a0001000000"},"total":7}]`) {
		t.Errorf("%s", rec.Body)
	}
	find := engi.DocumentQuery{
		Viewer: "ann", Workspace: "shop", Service: "mongodb", Database: "d", Collection: "orders", MaxRows: 1, MaxBytes: 1 << 20, Timeout: 5 * time.Second,
		Filter: json.RawMessage(`{"a":{"$gt":9007199254740993}}`), Projection: json.RawMessage(`{"a":1}`), Sort: json.RawMessage(`{"b":-1,"a":1}`), Skip: 2,
	}
	if d := gocmp.Diff(find, asked.found); d != "" {
		t.Error(d)
	}
	if x := read[v1.CollectionResult](t, ask(t, w, "POST", shop+"/documents", `{"pipeline":[{"$fail":{}}]}`), 200); x.Error == nil || x.Error.Code != "BadValue" || x.Documents == nil {
		t.Errorf("%+v", x)
	}
	for _, body := range []string{
		`{}`, `{"collection":"c","skip":-1}`, `{"collection":"c","filter":[]}`, `{"collection":"c","sort":"a"}`, `{"collection":"c","projection":1}`, `{"pipeline":{}}`, `{"collection":"c","max_rows":100001}`, `{"collection":"c","max_bytes":"17MiB"}`,
		`{"collection":"c","timeout":"11m"}`,
	} {
		refused(t, ask(t, w, "POST", shop+"/documents", body), 400, engi.Invalid)
	}
	refused(t, ask(t, w, "POST", shop+"/documents", `{"collection":"c","filter":{"a":"`+strings.Repeat("x", 1<<20)+`"}}`), 413, engi.Invalid)
}

// TestRolesInWorkspaces tries every route of a workspace as each of its collaborators.
func TestRolesInWorkspaces(t *testing.T) {
	may := map[string]string{ // the least role that may
		"GET": v1.RoleViewer, "POST git-upload-pack": v1.RoleViewer, "POST query": v1.RoleReviewer, "POST explain": v1.RoleReviewer, "POST documents": v1.RoleReviewer, "GET connection": v1.RoleEditor, "GET connect": v1.RoleEditor, "PATCH": "owner",
	}
	order := []string{v1.RoleViewer, v1.RoleReviewer, v1.RoleEditor, "owner"}
	for i, role := range order {
		w := newFixture(t, nil)
		mine := hold(t, w)
		shop := "/v1/workspaces/" + mine.more["workspaces"].id
		secret := w.User
		if role != "owner" {
			secret = w.Other
			read[v1.Workspace](t, ask(t, w, "PATCH", shop, `{"collaborators":[{"owner":"bob","role":"`+role+`"}]}`), 200)
		}
		as := []string{"Authorization", "Bearer " + secret}
		if all := read[v1.List[v1.Workspace]](t, ask(t, w, "GET", "/v1/workspaces", "", as...), 200).Items; len(all) == 0 || role != "owner" && len(all) != 1 || shop != "/v1/workspaces/"+all[len(all)-1].ID {
			t.Errorf("%s sees %+v", role, all)
		}
		// Others find it with its owner's name, never by its name alone.
		name := read[v1.Workspace](t, ask(t, w, "GET", shop, "", as...), 200).Name
		for at, want := range map[string]int{"ann%2F" + name: 200, name: 404, "bob%2F" + name: 404} {
			if role == "owner" && at == name {
				want = 200
			}
			if rec := ask(t, w, "GET", "/v1/workspaces/"+at, "", as...); rec.Code != want {
				t.Errorf("%s finds %s: %d, want %d", role, at, rec.Code, want)
			}
		}
		tried := 0
		for _, route := range w.Handler.Routes() {
			const one = " /v1/workspaces/{id}"
			verb, rest, ok := strings.Cut(route.Pattern, one)
			if !ok || strings.HasPrefix(verb, "DELETE") {
				continue // what follows needs them
			}
			tried++
			last := rest[strings.LastIndex(rest, "/")+1:]
			least := cmp.Or(may[verb+" "+last], may[verb], v1.RoleEditor)
			method, path, body := mine.requestFor(route.Pattern)
			if last == "query" {
				body = `{"text":"select 42 as n","read_only":true}`
			}
			rec := ask(t, w, method, path, body, append([]string{"Connection", "Upgrade", "Upgrade", "websocket"}, as...)...)
			allowed := i >= slices.Index(order, least)
			if (rec.Code == 403) == allowed {
				t.Errorf("%s as %s: status %d: %s", route.Pattern, role, rec.Code, rec.Body)
			}
		}
		if tried < 20 {
			t.Errorf("only %d routes", tried)
		}
		if rec := ask(t, w, "POST", shop+"/query", `{"text":"insert"}`, as...); (rec.Code == 403) != (i < 2) {
			t.Errorf("a %s writes: %d", role, rec.Code)
		}
		if rec := ask(t, w, "DELETE", shop, "", as...); (rec.Code == 204) != (role == "owner") {
			t.Errorf("a %s removes it: %d", role, rec.Code)
		}
	}
}
