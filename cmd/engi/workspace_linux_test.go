package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// housed has services that all are in one sandbox.
type housed struct {
	*apitest.Workspaces
	sandbox engi.SandboxID
}

func (h *housed) Get(ctx context.Context, viewer engi.Viewer, name string) (engi.Workspace, error) {
	x, err := h.Workspaces.Get(ctx, viewer, name)
	for i := range x.Services {
		x.Services[i].Sandbox = h.sandbox
	}
	return x, err
}

// TestWorkspaceConsole opens the clients of databases in a terminal.
func TestWorkspaceConsole(t *testing.T) {
	dir := t.TempDir()
	for name, password := range map[string]string{"psql": "$PGPASSWORD", "mariadb": "$MYSQL_PWD"} {
		script := "#!/bin/sh\necho \"" + name + " " + password + " $*\"\nread line\necho \"ran $line\"\nexit 3\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := &housed{Workspaces: &apitest.Workspaces{}}
	w, srv := apitest.Serve(t, func(o *apitest.Options) { o.Workspaces = h })
	b, err := w.Sandboxes.Create(t.Context(), engi.SandboxSpec{Owner: "ann", Env: map[string]string{"PATH": dir + ":" + os.Getenv("PATH")}})
	if err != nil {
		t.Fatal(err)
	}
	h.sandbox = b.ID
	var services []engi.ServiceSpec
	for _, kind := range []engi.ServiceType{engi.ServicePostgres, engi.ServiceMySQL, engi.ServiceRedis, engi.ServiceMongoDB, engi.ServiceNginx} {
		services = append(services, engi.ServiceSpec{Type: kind})
	}
	for name, has := range map[string][]engi.ServiceSpec{"shop": services[:1], "all": services, "none": services[2:]} {
		spec := engi.WorkspaceSpec{Owner: "ann", Name: name, Services: has, Collaborators: []engi.Collaborator{{Owner: "bob", Role: engi.RoleEditor}}}
		if _, err := h.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	open := func(key string, args ...string) *privileges {
		return sit(t, append([]string{"workspace", "sql", "--url", srv.URL, "--key", key}, args...)...)
	}
	for _, x := range []struct{ args, shows string }{
		{"shop", "psql secret --host=127.0.0.1 --port=5432 --username=engi --dbname=engi\r\n"},
		{"all --service mysql --database other", "mariadb secret --protocol=tcp --host=127.0.0.1 --port=3306 --user=engi --database=other\r\n"},
	} {
		p := open(w.User, strings.Fields(x.args)...)
		p.sees(x.shows)
		p.types("select 1;\n")
		p.sees("ran select 1;")
		p.ends(3)
	}
	all, err := h.Get(t.Context(), "ann", "all")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ key, args, says string }{
		{w.User, "all", "name one with --service"},
		{w.User, "none", "engi workspace service add none postgres"},
		{w.User, "all --service other", "has no service other"},
		{w.User, "all --service redis", "engi workspace redis all --service redis -- COMMAND"},
		{w.User, "all --service mongodb", "engi workspace find all COLLECTION --service mongodb"},
		{w.User, "all --service nginx", "engi workspace preview all --link --service nginx"},
		{w.User, "shop --read-only", "write the query with -c"},
		{w.User, "shop 7", "write the query with -c"},
		{w.User, "nobody", "nobody"},
		{w.Other, string(all.ID) + " --service mysql", "only the owner of workspace " + string(all.ID)},
	} {
		p := open(x.key, strings.Fields(x.args)...)
		p.ends(1)
		if said := p.heard(); !strings.Contains(said, x.says) {
			t.Errorf("%s: engi says %q, want %q", x.args, said, x.says)
		}
	}
	h.sandbox = ""
	p := open(w.User, "shop")
	p.ends(1)
	if said := p.heard(); !strings.Contains(said, "engi workspace start shop") {
		t.Errorf("without a sandbox engi says %q", said)
	}
}
