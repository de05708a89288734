package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// newShop makes a workspace with a database, a cache and a file.
func newShop(ctx context.Context, c *client.Client) v1.Workspace {
	return must(c.CreateWorkspace(ctx, v1.WorkspaceRequest{
		Name: "shop", Services: []v1.ServiceRequest{{Type: v1.ServicePostgres}, {Type: v1.ServiceRedis}},
		Files: []v1.WorkspaceWrite{{Path: "README.md", Content: new("# Shop\n")}},
	}))
}

func ExampleClient_CreateWorkspace() {
	c, stop := connect()
	defer stop()
	x := newShop(context.Background(), c)
	fmt.Println(x.Name, x.State, x.Revision)
	for _, s := range x.Services {
		fmt.Println(s.Name, s.State, s.Host)
	}
	// Output:
	// shop stopped 1
	// postgres healthy postgres.workspace.internal
	// redis healthy redis.workspace.internal
}

func ExampleClient_Workspaces() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.CreateWorkspace(ctx, v1.WorkspaceRequest{Name: "blog"}))
	for _, x := range must(c.Workspaces(ctx)) {
		fmt.Println(x.Name)
	}
	// Output:
	// blog
	// shop
}

func ExampleClient_Workspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	fmt.Println(must(c.Workspace(ctx, "shop")).Template)
	// Output: base
}

func ExampleClient_ChangeWorkspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	x := must(c.ChangeWorkspace(ctx, "shop", v1.WorkspaceUpdate{Share: []v1.Collaborator{{Owner: "bob", Role: v1.RoleEditor}}}))
	fmt.Println(x.Collaborators)
	// Output: [{bob editor}]
}

func ExampleClient_LinkWorkspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.ChangeWorkspace(ctx, "shop", v1.WorkspaceUpdate{Preview: &v1.PreviewRequest{Type: v1.PreviewStatic, Root: "site"}}))
	link := must(c.LinkWorkspace(ctx, "shop", "", time.Hour))
	fmt.Println(strings.HasPrefix(link.URL, must(c.Workspace(ctx, "shop")).Preview.URL))
	// Output: true
}

func ExampleClient_ConnectService() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.AddService(ctx, "shop", v1.ServiceRequest{Type: v1.ServiceNginx, Exposed: true}))
	conn := must(c.ConnectService(ctx, "shop", "nginx"))
	defer conn.Close()
	fmt.Fprintln(conn, "hello")
	reply := make([]byte, 5)
	must(io.ReadFull(conn, reply)) // this server sends back what it gets
	fmt.Println(string(reply))
	// Output: hello
}

func ExampleClient_StartWorkspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	x := must(c.StartWorkspace(ctx, "shop"))
	fmt.Println(x.State, x.SandboxID != "")
	// Output: running true
}

func ExampleClient_StopWorkspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	x := must(c.StopWorkspace(ctx, "shop"))
	fmt.Println(x.State, x.Services[0].State)
	// Output: stopped stopped
}

func ExampleClient_RemoveWorkspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	if err := c.RemoveWorkspace(ctx, "shop"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(must(c.Workspaces(ctx))))
	// Output: 0
}

func ExampleClient_WorkspaceFiles() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	for _, f := range must(c.WorkspaceFiles(ctx, "shop", "*.md", 0)) {
		fmt.Println(f.Path, int64(f.Size), f.Mode)
	}
	// Output: README.md 7 0644
}

func ExampleClient_WorkspaceFile() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	f := must(c.WorkspaceFile(ctx, "shop", "README.md", 1))
	defer f.Close()
	fmt.Print(string(must(io.ReadAll(f))))
	// Output: # Shop
}

func ExampleClient_WriteWorkspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	q := v1.WriteRequest{Files: []v1.WorkspaceWrite{{Path: "index.html", Content: new("<h1>Shop</h1>\n")}, {Path: "README.md", Removed: true}}, Message: "A page", Base: 1}
	r := must(c.WriteWorkspace(ctx, "shop", q))
	fmt.Println(r.Number, r.Message)
	for _, f := range r.Changed {
		fmt.Println(f.Op, f.Path)
	}
	// Output:
	// 2 A page
	// create index.html
	// remove README.md
}

func ExampleClient_WriteWorkspaceFile() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	r := must(c.WriteWorkspaceFile(ctx, "shop", "run.sh", strings.NewReader("echo\n"), client.FileWrite{Mode: 0o755, Message: "A script"}))
	fmt.Println(r.Number, r.Message)
	// Output: 2 A script
}

func ExampleClient_RemoveWorkspaceFile() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	fmt.Println(must(c.RemoveWorkspaceFile(ctx, "shop", "README.md", client.FileWrite{Message: "Nobody reads it"})).Changed[0].Op)
	// Output: remove
}

func ExampleClient_MoveWorkspaceFile() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	for _, f := range must(c.MoveWorkspaceFile(ctx, "shop", "README.md", "docs/README.md", client.FileWrite{Message: "Tidy up"})).Changed {
		fmt.Println(f.Op, f.Path)
	}
	// Output:
	// create docs/README.md
	// remove README.md
}

func ExampleClient_WorkspaceRevisions() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.RemoveWorkspaceFile(ctx, "shop", "README.md", client.FileWrite{Message: "Nobody reads it"}))
	for _, r := range must(c.WorkspaceRevisions(ctx, "shop")) {
		fmt.Println(r.Number, r.Message)
	}
	// Output:
	// 2 Nobody reads it
	// 1 Created
}

func ExampleClient_WorkspaceDiff() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.WriteWorkspaceFile(ctx, "shop", "README.md", strings.NewReader("# Store\n"), client.FileWrite{}))
	fmt.Print(must(c.WorkspaceDiff(ctx, "shop", 1, 2)))
	// Output:
	// --- a/README.md
	// +++ b/README.md
	// -# Shop
	// +# Store
}

func ExampleClient_RestoreWorkspace() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.RemoveWorkspaceFile(ctx, "shop", "README.md", client.FileWrite{}))
	r := must(c.RestoreWorkspace(ctx, "shop", 1, ""))
	fmt.Println(r.Number, r.Of)
	// Output: 3 1
}

func ExampleClient_WorkspaceBlame() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	for _, line := range must(c.WorkspaceBlame(ctx, "shop", "README.md", 0)) {
		fmt.Println(line.Revision, line.Text)
	}
	// Output: 1 # Shop
}

func ExampleClient_Services() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	for _, s := range must(c.Services(ctx, "shop")) {
		fmt.Println(s.Name, s.Server, s.Port)
	}
	// Output:
	// postgres PostgreSQL 15 5432
	// redis Redis 7 6379
}

func ExampleClient_AddService() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	s := must(c.AddService(ctx, "shop", v1.ServiceRequest{Type: v1.ServiceMySQL, Name: "old"}))
	fmt.Println(s.Name, s.Server, s.State)
	// Output: old MariaDB 10.11 healthy
}

func ExampleClient_RemoveService() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	if err := c.RemoveService(ctx, "shop", "redis"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(must(c.Services(ctx, "shop"))))
	// Output: 1
}

func ExampleClient_RestartService() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	fmt.Println(must(c.RestartService(ctx, "shop", "redis")).State)
	// Output: healthy
}

func ExampleClient_Connection() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	fmt.Println(must(c.Connection(ctx, "shop", "postgres")).URL)
	// Output: postgres://engi:secret@postgres.workspace.internal/engi
}

func ExampleClient_ServiceLogs() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	fmt.Print(must(c.ServiceLogs(ctx, "shop", "postgres", 0)).Text)
	// Output: PostgreSQL 15 is ready to accept connections
}

func ExampleClient_Query() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	r := must(c.Query(ctx, "shop", v1.QueryRequest{Text: "select $1 as n", Args: []json.RawMessage{json.RawMessage("42")}, ReadOnly: true}))
	fmt.Println(r.Columns[0].Name, string(r.Rows[0][0]))
	fmt.Println(must(c.Query(ctx, "shop", v1.QueryRequest{Text: "fail"})).Error.Text)
	// Output:
	// n 42
	// syntax error at or near "fail"
}

func ExampleClient_QueryCollection() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.AddService(ctx, "shop", v1.ServiceRequest{Type: v1.ServiceMongoDB}))
	r := must(c.QueryCollection(ctx, "shop", v1.CollectionRequest{Collection: "orders", Filter: json.RawMessage(`{"total": {"$gt": 5}}`)}))
	fmt.Println(string(r.Documents[0]))
	// Output: {"_id":{"$oid":"665f1c2b9d3e4a0001000000"},"total":7}
}

func ExampleClient_Explain() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	fmt.Print(must(c.Explain(ctx, "shop", v1.QueryRequest{Text: "select 42 as n"})).Text)
	// Output: Result  (cost=0.00..0.01 rows=1 width=4)
}

func ExampleClient_Tables() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	for _, t := range must(c.Tables(ctx, "shop", "", "")) {
		fmt.Println(t.Schema, t.Name, t.Kind)
	}
	// Output:
	// public orders table
	// public paid view
}

func ExampleClient_DescribeTable() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	for _, column := range must(c.DescribeTable(ctx, "shop", "", "", "orders")).Columns {
		fmt.Println(column.Name, column.Type, column.Nullable)
	}
	// Output:
	// id integer false
	// note text true
}

func ExampleClient_RedisCommand() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	newShop(ctx, c)
	must(c.RedisCommand(ctx, "shop", "redis", "SET", "greeting", "hello"))
	fmt.Println(string(must(c.RedisCommand(ctx, "shop", "redis", "GET", "greeting")).Reply))
	// Output: "hello"
}
