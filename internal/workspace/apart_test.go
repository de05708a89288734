package workspace_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/preview"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/internal/workspace/repo"
	"github.com/engi-dev/engi/test/apitest"
)

// neighbours are three workspaces behind the API. Ann owns alpha and beta, and Carl owns gamma. Bob is an editor of alpha and of
// gamma, so that alpha and beta have one owner, and alpha and gamma one collaborator.
type neighbours struct {
	*testing.T
	w                  *fixture
	s                  *workspace.Service
	api                *apitest.Fixture
	pages              *preview.Proxy
	alpha, beta, gamma engi.Workspace
	secrets            []string // texts that only beta and gamma have
	ways               int
}

func newNeighbours(t *testing.T) *neighbours {
	n := &neighbours{T: t, w: newFixture(t)}
	n.s, _ = n.w.begin(t)
	shared := n.s.Shared(boxes{fixture: n.w})
	n.api = apitest.New(func(o *apitest.Options) { o.Workspaces, o.Sandboxes = n.s, shared })
	t.Cleanup(n.api.Close)
	n.pages = preview.New(preview.Options{Sandboxes: shared, Keys: n.api.Keys, LinkKey: make([]byte, 32), Domains: []string{"sbx.test"}, Workspaces: n.s})
	bob := []engi.Collaborator{{Owner: "bob", Role: engi.RoleEditor}}
	// The others have services that alpha does not have, and one of the same name.
	theirs := []engi.ServiceSpec{{Type: engi.ServicePostgres}, {Type: engi.ServicePostgres, Name: "vault", Exposed: true}, {Type: engi.ServiceRedis, Name: "cache", Exposed: true}, {Type: engi.ServiceNginx, Name: "front", Exposed: true}}
	for _, x := range []struct {
		at   *engi.Workspace
		spec engi.WorkspaceSpec
	}{
		{&n.alpha, engi.WorkspaceSpec{Owner: "ann", Name: "alpha", Collaborators: bob, Files: []engi.WorkspaceFile{file("own.txt", "plum\n")}, Services: []engi.ServiceSpec{{Type: engi.ServicePostgres}, {Type: engi.ServiceNginx, Name: "web", Exposed: true}}}},
		{&n.beta, engi.WorkspaceSpec{Owner: "ann", Name: "beta", Files: []engi.WorkspaceFile{file("secret.txt", "marmalade\n")}, Services: theirs}},
		{&n.gamma, engi.WorkspaceSpec{Owner: "carl", Name: "gamma", Collaborators: bob, Files: []engi.WorkspaceFile{file("secret.txt", "quince\n")}, Services: theirs}},
	} {
		must[engi.Workspace](t)(n.s.Create(t.Context(), x.spec))
		p := &engi.WorkspacePreview{Type: engi.PreviewStatic}
		must[engi.Workspace](t)(n.s.Change(t.Context(), x.spec.Owner.Viewer(), x.spec.Name, engi.WorkspaceChange{Preview: p}))
		*x.at = must[engi.Workspace](t)(n.s.Start(t.Context(), x.spec.Owner.Viewer(), x.spec.Name))
	}
	n.secrets = []string{"marmalade", "quince"}
	for _, x := range []engi.Workspace{n.beta, n.gamma} {
		// Revisions that alpha does not have.
		for _, text := range []string{"marmalade of " + x.Name, "quince of " + x.Name} {
			must[engi.WorkspaceRevision](t)(n.s.Write(t.Context(), engi.WriteSpec{Viewer: x.Owner.Viewer(), Workspace: x.Name, Files: []engi.WorkspaceFile{file("secret.txt", text)}}))
		}
		for _, s := range x.Services {
			if c := must[engi.Connection](t)(n.s.Connection(t.Context(), x.Owner.Viewer(), x.Name, s.Name)); c.Password != "" {
				n.secrets = append(n.secrets, c.Password)
			}
		}
	}
	return n
}

// leaks reports an answer that has something of beta or gamma in it.
func (n *neighbours) leaks(way, answer string) {
	n.Helper()
	for _, s := range n.secrets {
		if strings.Contains(answer, s) {
			n.Errorf("%s: it has %q in it: %.500s", way, s, answer)
		}
	}
}

// ask sends a request to the API, which every route takes for one that it may upgrade.
func (n *neighbours) ask(key, route, body string) *httptest.ResponseRecorder {
	n.Helper()
	n.ways++
	method, path, _ := strings.Cut(route, " ")
	r := httptest.NewRequestWithContext(n.Context(), method, path, strings.NewReader(body))
	r.Host = "localhost"
	kind := "application/json"
	switch {
	case strings.Contains(path, "/git/git-"):
		kind = "application/x-" + path[strings.LastIndex(path, "/")+1:] + "-request"
	case method == "PUT":
		kind = "application/octet-stream"
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + key, "Content-Type": kind, "Connection": "Upgrade", "Upgrade": "websocket"} {
		r.Header.Set(name, value)
	}
	rec := httptest.NewRecorder()
	n.api.Handler.ServeHTTP(rec, r)
	n.leaks(route, rec.Body.String())
	return rec
}

// state describes a workspace as its owner sees it.
func (n *neighbours) state(x engi.Workspace) string {
	n.Helper()
	now := must[engi.Workspace](n.T)(n.s.Get(n.Context(), x.Owner.Viewer(), x.Name))
	var services []string
	for _, s := range now.Services {
		services = append(services, fmt.Sprint(s.Name, s.State, s.Sandbox, s.Volume, s.Started))
	}
	return fmt.Sprint(now.Name, now.State, now.Sandbox, now.Revision, now.Collaborators, now.Preview, now.Metadata, services, contents(n.T, n.s, x.Name, 0))
}

// TestApart goes 40 ways and more from one workspace to another: from alpha to beta, which has the same owner, and from alpha to
// gamma, which has the same collaborator.
func TestApart(t *testing.T) {
	n := newNeighbours(t)
	before := n.state(n.beta) + n.state(n.gamma)
	for _, other := range []engi.Workspace{n.beta, n.gamma} {
		t.Run("through the API to "+other.Name, func(t *testing.T) { n.throughAlpha(t, other) })
		t.Run("with git to "+other.Name, func(t *testing.T) { n.withGit(t, other) })
		t.Run("through previews to "+other.Name, func(t *testing.T) { n.throughPreviews(t, other) })
	}
	t.Run("as somebody without a role", n.withoutRole)
	t.Run("with tools", n.withTools)
	t.Run("over the network", n.overNetwork)
	if after := n.state(n.beta) + n.state(n.gamma); after != before {
		t.Errorf("the others were\n%s\nand are\n%s", before, after)
	}
	for p, text := range contents(t, n.s, "alpha", 0) {
		n.leaks("the file "+p, text)
	}
	if n.ways < 40 {
		t.Errorf("only %d ways were tried", n.ways)
	}
	t.Logf("%d ways", n.ways)
}

// throughAlpha names things of another workspace in requests about alpha, as its owner and as the collaborator.
func (n *neighbours) throughAlpha(t *testing.T, other engi.Workspace) {
	const alpha = " /v1/workspaces/alpha"
	id, name := string(other.ID), other.Name
	last := must[[]engi.WorkspaceRevision](t)(n.s.Revisions(t.Context(), other.Owner.Viewer(), other.Name, engi.Paging{Limit: 1}))[0].Number
	own := must[[]engi.WorkspaceRevision](t)(n.s.Revisions(t.Context(), "ann", "alpha", engi.Paging{Limit: 1}))[0].Number
	if last <= own {
		t.Fatalf("%s has %d revisions, alpha %d", name, last, own)
	}
	type way struct{ route, body string }
	ways := []way{
		// files
		{"GET" + alpha + "/files?path=secret.txt", ""}, {"GET" + alpha + "/files?path=../" + name + "/secret.txt", ""}, {"GET" + alpha + "/files?path=..%2F" + id + "%2Fsecret.txt", ""},
		{"GET" + alpha + "/files?path=/v1/workspaces/" + name + "/secret.txt", ""},
		{fmt.Sprintf("GET%s/files?path=secret.txt&revision=%d", alpha, last), ""}, {fmt.Sprintf("GET%s/files/list?revision=%d", alpha, last), ""},
		{fmt.Sprintf("GET%s/diff?from=%d&to=%d", alpha, own, last), ""}, {fmt.Sprintf("GET%s/blame?path=secret.txt&revision=%d", alpha, last), ""}, {"GET" + alpha + "/blame?path=secret.txt", ""},
		{"PUT" + alpha + "/files?path=../" + name + "/x.txt", "x"}, {"POST" + alpha + "/files", `{"files":[{"path":"../` + name + `/x.txt","content":"x"}]}`},
		{"DELETE" + alpha + "/files?path=../" + name + "/secret.txt", ""}, {"POST" + alpha + "/files/move", `{"from":"../` + name + `/secret.txt","to":"mine.txt"}`},
		{"POST" + alpha + "/files/move", `{"from":"secret.txt","to":"mine.txt"}`}, {"POST" + alpha + "/files/move", `{"from":"own.txt","to":"../` + name + `/own.txt"}`},
		{"POST" + alpha + "/restore", fmt.Sprintf(`{"revision":%d}`, last)}, {"POST" + alpha + "/restore", `{"revision":1,"path":"secret.txt"}`},
		// services, with the names that the other one has
		{"POST" + alpha + "/services", `{"type":"redis","name":"own","needs":["vault"]}`}, {"POST" + alpha + "/services", `{"type":"postgres","name":"own","volume_id":"` + string(other.Services[0].Volume) + `"}`},
		{"POST" + alpha + "/services", `{"type":"redis","name":"workspace"}`}, {"POST" + alpha + "/services", `{"type":"redis","name":"cache.` + name + `"}`},
		{"POST" + alpha + "/link", `{"service":"front"}`}, {"POST" + alpha + "/services/cache/command", `{"args":["KEYS","*"]}`},
		// databases
		{"POST" + alpha + "/query", `{"text":"select 1","service":"vault"}`}, {"POST" + alpha + "/query", `{"text":"select 1","service":"` + name + `/postgres"}`},
		{"POST" + alpha + "/query", `{"text":"select 1","service":"postgres.` + name + `"}`}, {"POST" + alpha + "/query", `{"text":"select 1","service":"` + string(other.Services[0].Sandbox) + `"}`},
		{"POST" + alpha + "/explain", `{"text":"select 1","service":"vault"}`}, {"POST" + alpha + "/documents", `{"collection":"c","service":"vault"}`},
		{"GET" + alpha + "/tables?service=vault", ""}, {"GET" + alpha + "/tables/notes?service=vault", ""},
		// previews
		{"PATCH" + alpha, `{"preview":{"type":"static","root":"../` + name + `"}}`}, {"PATCH" + alpha, `{"preview":{"type":"static","root":"/v1/workspaces/` + name + `"}}`},
	}
	for _, service := range []string{"vault", name + "%2Fpostgres", id + "%2Fpostgres", "vault.workspace.internal", string(other.Services[0].Sandbox)} {
		for _, what := range []string{"GET /connection", "GET /connect", "GET /logs", "POST /restart", "DELETE "} {
			method, rest, _ := strings.Cut(what, " ")
			ways = append(ways, way{method + alpha + "/services/" + service + rest, ""})
		}
	}
	for _, key := range []string{n.api.User, n.api.Other} {
		for _, x := range ways {
			rec := n.ask(key, strings.ReplaceAll(x.route, "/alpha", "/"+string(n.alpha.ID)), x.body)
			if rec.Code < 400 || rec.Code == http.StatusForbidden || rec.Code >= 500 {
				t.Errorf("%s %s: %d %.300s", x.route, x.body, rec.Code, rec.Body)
			}
		}
	}
	// A service of the same name is another one.
	mine := must[engi.Connection](t)(n.s.Connection(t.Context(), "ann", "alpha", "postgres"))
	if theirs := must[engi.Connection](t)(n.s.Connection(t.Context(), other.Owner.Viewer(), other.Name, "postgres")); mine.Password == theirs.Password || mine.Host != theirs.Host {
		t.Errorf("the two services have %+v and %+v", mine, theirs)
	}
}

// withGit asks for objects of another workspace, and gives them to alpha as its own.
func (n *neighbours) withGit(t *testing.T, other engi.Workspace) {
	theirs := must[*clone](t)(cloned(t.Context(), n.s, other.Owner.Viewer(), other.Name))
	blob := repo.HashOf(repo.Blob, []byte("marmalade of "+other.Name))
	for _, want := range []string{theirs.last.Commit, blob} {
		for _, key := range []string{n.api.User, n.api.Other} {
			rec := n.ask(key, "POST /v1/workspaces/"+string(n.alpha.ID)+"/git/git-upload-pack", "0032want "+want+"\n00000009done\n")
			if rec.Code < 400 && !strings.Contains(rec.Body.String(), "ERR") {
				t.Errorf("%s of %s is fetched from alpha: %d %.300q", want, other.Name, rec.Code, rec.Body)
			}
		}
	}
	// A commit that the pusher knows by its hash, and whose objects are not in the pack.
	mine := must[*clone](t)(cloned(t.Context(), n.s, "ann", "alpha"))
	from := mine.last.Commit
	for _, objects := range [][]repo.Object{nil, mine.commit(t, "of alpha", map[string]string{"b": "1"})} {
		n.ways++
		theirs := clone{last: theirs.last}
		if said, err := theirs.push(t.Context(), n.s, "bob", string(n.alpha.ID), from, objects); err == nil && strings.HasSuffix(said, "ok refs/heads/main") {
			t.Errorf("a commit of %s is pushed to alpha: %q", other.Name, said)
		}
	}
	// A file of alpha that has the hash of a file of the other one.
	n.ways++
	mine = must[*clone](t)(cloned(t.Context(), n.s, "ann", "alpha"))
	files := repo.Files{"own.txt": mine.last.Files["own.txt"], "stolen.txt": {Path: "stolen.txt", Mode: repo.FileMode, Hash: blob}}
	next, made, err := mine.last.Next(files, repo.Note{Message: "steal", Actor: "bob", Time: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	mine.last = next
	if said, err := mine.push(t.Context(), n.s, "bob", string(n.alpha.ID), from, made); err == nil && strings.HasSuffix(said, "ok refs/heads/main") {
		t.Errorf("a file of %s is pushed to alpha by its hash: %q", other.Name, said)
	}
}

// throughPreviews opens pages of another workspace with what opens those of alpha.
func (n *neighbours) throughPreviews(t *testing.T, other engi.Workspace) {
	visit := func(address, path string, header ...string) *httptest.ResponseRecorder {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://"+u.Host+"/", nil)
		r.URL.Path, r.URL.RawQuery = path, u.RawQuery
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		rec := httptest.NewRecorder()
		n.pages.ServeHTTP(rec, r)
		return rec
	}
	there := func(link string, of engi.Workspace, service string) string { // the same link at another host
		u, err := url.Parse(n.pages.WorkspaceURL(of.ID, service))
		if err != nil {
			t.Fatal(err)
		}
		u.RawQuery = link[strings.Index(link, "?")+1:]
		return u.String()
	}
	link := func(service string) string {
		address, _, err := n.pages.SignWorkspace(n.alpha.ID, service, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	first := visit(link(""), "/own.txt", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	cookie := strings.Split(first.Header().Get("Set-Cookie"), ";")[0]
	if cookie == "" {
		t.Fatalf("a link to alpha is answered with %d %v", first.Code, first.Header())
	}
	if rec := visit(n.pages.WorkspaceURL(n.alpha.ID, ""), "/own.txt", "Cookie", cookie); rec.Code != 200 || rec.Body.String() != "plum\n" {
		t.Fatalf("a link to alpha opens %d %s", rec.Code, rec.Body)
	}
	bob := "Bearer " + n.api.Other
	if other.Owner != "ann" {
		bob = "Bearer " + n.api.User // Bob works in gamma, and Ann does not
	}
	refused := map[string]*httptest.ResponseRecorder{
		"a link to alpha":                      visit(there(link(""), other, ""), "/secret.txt"),
		"a link to a service of alpha":         visit(there(link("web"), other, ""), "/secret.txt"),
		"a link to alpha, at a service":        visit(there(link(""), other, "front"), "/"),
		"a link to a service, at another":      visit(there(link("web"), other, "front"), "/"),
		"a cookie of alpha":                    visit(n.pages.WorkspaceURL(other.ID, ""), "/secret.txt", "Cookie", cookie),
		"a cookie of alpha, at a service":      visit(n.pages.WorkspaceURL(other.ID, "front"), "/", "Cookie", cookie),
		"the key of somebody without a role":   visit(n.pages.WorkspaceURL(other.ID, ""), "/secret.txt", "Authorization", bob),
		"that key, at a service":               visit(n.pages.WorkspaceURL(other.ID, "front"), "/", "Authorization", bob),
		"nothing":                              visit(n.pages.WorkspaceURL(other.ID, ""), "/secret.txt"),
		"a service of the other one, at alpha": visit(there(link(""), n.alpha, "front"), "/"),
	}
	for _, path := range []string{"/secret.txt", "/../" + other.Name + "/secret.txt", "/..%2f" + string(other.ID) + "/secret.txt", "//" + other.Name + "/secret.txt"} {
		refused["the path "+path] = visit(n.pages.WorkspaceURL(n.alpha.ID, ""), path, "Cookie", cookie)
	}
	for what, rec := range refused {
		n.ways++
		if n.leaks(what, rec.Body.String()); rec.Code < 300 {
			t.Errorf("%s opens %s: %d %.300s", what, other.Name, rec.Code, rec.Body)
		}
	}
}

// withoutRole asks for everything about a workspace, as an owner of another one or a collaborator on it.
func (n *neighbours) withoutRole(t *testing.T) {
	bodies := map[string]string{
		"PATCH": `{"metadata":{}}`, "link": `{}`, "files": `{"files":[{"path":"x","content":"x"}]}`, "move": `{"from":"secret.txt","to":"x"}`, "restore": `{"revision":1}`, "services": `{"type":"redis","name":"own"}`, "query": `{"text":"select 1"}`,
		"explain": `{"text":"select 1"}`, "documents": `{"collection":"c"}`, "command": `{"args":["PING"]}`, "git-upload-pack": "0000", "git-receive-pack": "0000",
	}
	queries := map[string]string{"files": "?path=secret.txt", "blame": "?path=secret.txt", "refs": "?service=git-upload-pack"}
	for _, x := range []struct {
		key string
		of  engi.Workspace
	}{{n.api.Other, n.beta}, {n.api.User, n.gamma}} {
		tried := 0
		for _, name := range []string{string(x.of.ID), x.of.Name, string(x.of.Owner) + "%2F" + x.of.Name} {
			for _, route := range n.api.Handler.Routes() {
				if !strings.Contains(route.Pattern, " /v1/workspaces/{id}") {
					continue
				}
				tried++
				method, path, _ := strings.Cut(strings.NewReplacer("{id}", name, "{service}", "vault", "{table}", "notes").Replace(route.Pattern), " ")
				last := path[strings.LastIndex(path, "/")+1:]
				body := ""
				switch {
				case method == "PUT":
					body = "x"
				case method == "PATCH":
					body = bodies[method]
				case method == "POST":
					body = bodies[last]
				}
				if method != "POST" {
					path += queries[last]
				}
				if rec := n.ask(x.key, method+" "+path, body); rec.Code != http.StatusNotFound {
					t.Errorf("%s %s: %d %.300s", method, path, rec.Code, rec.Body)
				}
			}
		}
		if tried < 90 {
			t.Errorf("only %d requests about %s", tried, x.of.Name)
		}
		boxes := []engi.SandboxID{x.of.Sandbox}
		for _, s := range x.of.Services {
			boxes = append(boxes, s.Sandbox)
		}
		for _, id := range boxes {
			for route, body := range map[string]string{"POST /v1/sandboxes/ID/processes": `{"args":["true"]}`, "GET /v1/sandboxes/ID/files?path=/workspace/secret.txt": "", "GET /v1/sandboxes/ID/files/list?path=/": "", "GET /v1/sandboxes/ID/processes": ""} {
				if rec := n.ask(x.key, strings.ReplaceAll(route, "ID", string(id)), body); rec.Code != http.StatusNotFound {
					t.Errorf("%s of %s: %d %.300s", route, x.of.Name, rec.Code, rec.Body)
				}
			}
		}
	}
	// A collaborator on alpha works in its sandbox, and not in those of its services.
	for _, s := range n.alpha.Services {
		if rec := n.ask(n.api.Other, "POST /v1/sandboxes/"+string(s.Sandbox)+"/processes", `{"args":["true"]}`); rec.Code != http.StatusNotFound {
			t.Errorf("a collaborator in service %s: %d %s", s.Name, rec.Code, rec.Body)
		}
	}
	for key, want := range map[string]string{n.api.User: "alpha beta", n.api.Other: "alpha gamma"} {
		answer := n.ask(key, "GET /v1/workspaces", "").Body.String()
		for _, name := range []string{"alpha", "beta", "gamma"} {
			if got := strings.Contains(answer, `"name":"`+name+`"`); got != strings.Contains(want, name) {
				t.Errorf("a list that is to have %s: %s", want, answer)
			}
		}
	}
}

// withTools names a workspace in which the owner of a run has no role, in every way in which a model could.
func (n *neighbours) withTools(t *testing.T) {
	tools := must[[]tool.Tool](t)(tool.Builtin(tool.Services{Workspaces: n.s, Sandboxes: n.s.Shared(boxes{fixture: n.w})}))
	tried := 0
	for _, x := range []struct {
		owner engi.Owner
		of    engi.Workspace
	}{{"bob", n.beta}, {"ann", n.gamma}} {
		for _, name := range []string{x.of.Name, string(x.of.ID), string(x.of.Owner) + "/" + x.of.Name, "../" + x.of.Name, "alpha/../" + x.of.Name} {
			for which, args := range map[string]string{
				"read_workspace": `{"path":"secret.txt",`, "write_workspace": `{"files":[{"path":"x","content":"x"}],`, "move_workspace_file": `{"from":"secret.txt","to":"x",`, "add_service": `{"type":"redis","name":"own",`, "enable_preview": `{`,
				"run_sql": `{"query":"select 1",`, "describe_tables": `{`, "query_collection": `{"collection":"orders",`, "run_redis_command": `{"command":["PING"],"service":"cache",`,
			} {
				n.ways, tried = n.ways+1, tried+1
				i := slices.IndexFunc(tools, func(t tool.Tool) bool { return t.Name == which })
				r, err := tools[i].Run(t.Context(), &tool.Call{Env: tool.Env{Owner: x.owner, Workspace: string(n.alpha.ID)}, Out: func(engi.Stream, []byte) {}}, args+`"workspace":"`+name+`"}`)
				if n.leaks(which, r.Text); err != nil || !r.Failed {
					t.Errorf("%s of %s as %s: %+v, %v", which, name, x.owner, r, err)
				}
			}
		}
	}
	if tried < 80 {
		t.Errorf("only %d calls", tried)
	}
}

// overNetwork compares the groups of the sandboxes, in which names resolve; package egress tests that they resolve nowhere else.
func (n *neighbours) overNetwork(t *testing.T) {
	groups := map[string]string{} // workspace by group
	names := map[string]bool{}
	for _, spec := range n.w.specs {
		of := spec.Metadata["workspace"]
		n.ways++
		if other, ok := groups[spec.Network.Group]; ok && other != of || spec.Network.Group == "" {
			t.Errorf("%s and %s share the group %q", of, other, spec.Network.Group)
		}
		groups[spec.Network.Group] = of
		if key := spec.Network.Group + "/" + spec.Network.Name; names[key] {
			t.Errorf("two sandboxes of %s are called %s", of, spec.Network.Name)
		} else {
			names[key] = true
		}
		if spec.Notes["service"] != "" && (spec.Network.Mode != engi.NetworkIsolated || len(spec.Network.Allow) > 0 || !spec.Ports.Private) {
			t.Errorf("service %s of %s has the network %+v and the ports %+v", spec.Network.Name, of, spec.Network, spec.Ports)
		}
	}
	if len(groups) != 3 {
		t.Errorf("the groups are %v", groups)
	}
}
