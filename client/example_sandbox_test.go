package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// room returns a client and a sandbox.
func sandbox() (*client.Client, string, func()) {
	c, stop := connect()
	b, err := c.CreateSandbox(context.Background(), v1.SandboxRequest{})
	if err != nil {
		log.Fatal(err)
	}
	return c, b.ID, stop
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleClient_CreateSandbox() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	b, err := c.CreateSandbox(ctx, v1.SandboxRequest{
		Template: "base",
		Memory:   1 << 30,
		Lifetime: v1.Lifetime{IdleTimeout: v1.Duration(5 * time.Minute), OnTimeout: "hibernate", AutoResume: true},
		Metadata: map[string]string{"task": "42"},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.State, b.Template, b.Metadata["task"])
	check(c.StopSandbox(ctx, b.ID))
	// Output: running base 42
}

func ExampleClient_Exec() {
	c, box, stop := sandbox()
	defer stop()
	x, err := c.Exec(context.Background(), box, v1.ProcessRequest{Command: "echo $((6*7)); echo oops >&2; exit 3"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(x.Stdout, x.Stderr)
	fmt.Println(x.ExitCode, x.Cause)
	// Output:
	// 42
	// oops
	// 3 exited
}

func ExampleClient_StartProcess() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	p, err := c.StartProcess(ctx, box, v1.ProcessRequest{Args: []string{"cat"}, Stdin: true, Tag: "cat"})
	if err != nil {
		log.Fatal(err)
	}
	check(p.Input(ctx, strings.NewReader("hello\n")))
	check(p.CloseInput(ctx))
	for e, err := range p.Output(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(e.Type, " ", e.Data)
	}
	// Output:
	// stdout hello
	// exit
}

func ExampleClient_Process() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	must(c.StartProcess(ctx, box, v1.ProcessRequest{Command: "echo ready; sleep 60", Tag: "server", Detach: true}))
	// Somewhere else, later:
	p, err := c.Process(ctx, box, "server")
	if err != nil {
		log.Fatal(err)
	}
	for e, err := range p.Output(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(e.Data)
		break
	}
	check(p.Signal(ctx, "KILL"))
	exit := must(p.Wait(ctx))
	fmt.Println(exit.ExitCode, exit.Signal)
	// Output:
	// ready
	// -1 KILL
}

func ExampleProcess_Terminal() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	p := must(c.StartProcess(ctx, box, v1.ProcessRequest{
		Args: []string{"/bin/sh"}, Terminal: &v1.TerminalSize{Cols: 80, Rows: 24}, Env: map[string]string{"PS1": ""}, Detach: true,
	}))
	t, err := p.Terminal(ctx, false)
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	check(t.Resize(ctx, 100, 30))
	check(t.Write(ctx, []byte("stty size; exit 3\n")))
	var shown strings.Builder
	for data, err := range t.Output(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		shown.Write(data)
	}
	fmt.Println(strings.Contains(shown.String(), "30 100"), t.Exit().ExitCode)
	// Output: true 3
}

func ExampleClient_Processes() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	must(c.StartProcess(ctx, box, v1.ProcessRequest{Args: []string{"sleep", "60"}, Detach: true}))
	for _, p := range must(c.Processes(ctx, box)) {
		fmt.Println(p.Args, p.Running)
	}
	// Output: [sleep 60] true
}

func ExampleClient_Files() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	files := c.Files(box)
	w, err := files.Write(ctx, "/workspace/data/a.txt", strings.NewReader("hello"), client.WithMode(0o600))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(w.Size, w.SHA256[:8])
	check(files.MakeDir(ctx, "/workspace/other"))
	check(files.Move(ctx, "/workspace/data/a.txt", "/workspace/other/b.txt"))
	for _, f := range must(files.List(ctx, "/workspace", 2)) {
		fmt.Println(f.Type, f.Path)
	}
	f, err := files.Open(ctx, "/workspace/other/b.txt")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	fmt.Println(string(must(io.ReadAll(f))), f.Size)
	part := must(files.OpenRange(ctx, "/workspace/other/b.txt", 1, 3))
	defer part.Close()
	fmt.Println(string(must(io.ReadAll(part))))
	fmt.Println(must(files.Stat(ctx, "/workspace/other/b.txt")).Mode)
	check(files.Remove(ctx, "/workspace/other"))
	_, err = files.Stat(ctx, "/workspace/other")
	fmt.Println(client.IsKind(err, v1.NotFound))
	// Output:
	// 5B 2cf24dba
	// directory /workspace/data
	// directory /workspace/other
	// file /workspace/other/b.txt
	// hello 5
	// ell
	// 0600
	// true
}

func ExampleFiles_Pack() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	files := c.Files(box)
	must(files.Write(ctx, "/workspace/d/a.txt", strings.NewReader("hello")))
	archive, err := files.Pack(ctx, "/workspace/d", "tar.gz")
	if err != nil {
		log.Fatal(err)
	}
	defer archive.Close()
	check(files.Unpack(ctx, "/workspace/copy", archive))
	fmt.Println(must(files.Stat(ctx, "/workspace/copy/d/a.txt")).Size)
	// Output: 5B
}

func ExampleFiles_Watch() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	files := c.Files(box)
	check(files.MakeDir(ctx, "/workspace/in"))
	for e, err := range files.Watch(ctx, "/workspace/in", false) {
		if err != nil {
			log.Fatal(err)
		}
		if e.Type == v1.EventStarted {
			check(files.MakeDir(ctx, "/workspace/in/new"))
			continue
		}
		fmt.Println(e.Type, e.Path)
		break
	}
	// Output: create /workspace/in/new
}

func ExampleClient_FindSandboxes() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSandbox(ctx, v1.SandboxRequest{Metadata: map[string]string{"task": "1"}}))
	must(c.CreateSandbox(ctx, v1.SandboxRequest{Metadata: map[string]string{"task": "2"}}))
	for b, err := range c.FindSandboxes(ctx, client.SandboxFilter{
		States: []string{v1.SandboxRunning, v1.SandboxPaused}, Metadata: map[string]string{"task": "2"}, Owned: true, Oldest: true,
	}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(b.Metadata)
	}
	// Output: map[task:2]
}

func ExampleClient_HibernateSandbox() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	b, err := c.HibernateSandbox(ctx, box, false)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.State)
	_, err = c.Exec(ctx, box, v1.ProcessRequest{Args: []string{"true"}})
	fmt.Println(client.IsKind(err, v1.Conflict))
	// Output:
	// hibernated
	// true
}

func ExampleClient_ResumeSandbox() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	must(c.HibernateSandbox(ctx, box, true))
	fmt.Println(must(c.ResumeSandbox(ctx, box, v1.ResumeRequest{Timeout: v1.Duration(time.Minute)})).State)
	// Output: running
}

func ExampleClient_PauseSandbox() {
	c, box, stop := sandbox()
	defer stop()
	fmt.Println(must(c.PauseSandbox(context.Background(), box)).State)
	// Output: paused
}

func ExampleClient_ExtendSandbox() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	b := must(c.ExtendSandbox(ctx, box, 2*time.Hour))
	fmt.Println(time.Until(*b.DeadlineAt) > time.Hour)
	// Output: true
}

func ExampleClient_UpdateSandbox() {
	c, box, stop := sandbox()
	defer stop()
	idle := v1.Duration(time.Minute)
	b := must(c.UpdateSandbox(context.Background(), box, v1.SandboxUpdate{IdleTimeout: &idle, Metadata: &map[string]string{"done": "yes"}}))
	fmt.Println(b.Lifetime.IdleTimeout, b.Metadata)
	// Output: 1m0s map[done:yes]
}

func ExampleClient_SnapshotSandbox() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	s, err := c.SnapshotSandbox(ctx, box, v1.SnapshotRequest{Name: "ready", TTL: v1.Duration(24 * time.Hour)})
	if err != nil {
		log.Fatal(err)
	}
	b := must(c.CreateSandbox(ctx, v1.SandboxRequest{Snapshot: "ready"}))
	fmt.Println(s.Name, b.SnapshotID == s.ID)
	// Output: ready true
}

func ExampleClient_ForkSandbox() {
	c, box, stop := sandbox()
	defer stop()
	for _, f := range must(c.ForkSandbox(context.Background(), box, v1.ForkRequest{Count: 3})) {
		if f.Error != nil {
			fmt.Println(f.Error.Kind)
			continue
		}
		fmt.Println(f.Sandbox.State)
	}
	// Output:
	// running
	// running
	// exhausted
}

func ExampleClient_SandboxMetrics() {
	c, box, stop := sandbox()
	defer stop()
	for _, s := range must(c.SandboxMetrics(context.Background(), box, time.Now().Add(-time.Hour), time.Time{})) {
		fmt.Println(s.Memory, s.MemoryLimit, s.Processes)
	}
	// Output: 1MiB 512MiB 2
}

func ExampleClient_Ports() {
	c, box, stop := sandbox()
	defer stop()
	for _, p := range must(c.Ports(context.Background(), box)) {
		fmt.Println(p.Port, p.Process, p.URL != "")
	}
	// Output: 8080 node true
}

func ExampleClient_Port() {
	c, box, stop := sandbox()
	defer stop()
	fmt.Println(must(c.Port(context.Background(), box, 1)).Listening)
	// Output: false
}

func ExampleClient_LinkPort() {
	c, box, stop := sandbox()
	defer stop()
	l := must(c.LinkPort(context.Background(), box, 8080, 10*time.Minute))
	fmt.Println(l.URL != "", time.Until(l.ExpiresAt) > time.Minute)
	// Output: true true
}

func ExampleClient_Snapshots() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	must(c.SnapshotSandbox(ctx, box, v1.SnapshotRequest{Name: "a"}))
	for _, s := range must(c.Snapshots(ctx, box)) {
		fmt.Println(s.Name, s.Bytes)
	}
	// Output: a 1MiB
}

func ExampleClient_Snapshot() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	must(c.SnapshotSandbox(ctx, box, v1.SnapshotRequest{Name: "a"}))
	fmt.Println(must(c.Snapshot(ctx, "a")).SandboxID == box)
	// Output: true
}

func ExampleClient_RemoveSnapshot() {
	c, box, stop := sandbox()
	defer stop()
	ctx := context.Background()
	s := must(c.SnapshotSandbox(ctx, box, v1.SnapshotRequest{}))
	check(c.RemoveSnapshot(ctx, s.ID))
	_, err := c.Snapshot(ctx, s.ID)
	fmt.Println(client.IsKind(err, v1.NotFound))
	// Output: true
}

func ExampleClient_CreateVolume() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	v, err := c.CreateVolume(ctx, v1.VolumeRequest{Name: "data", Capacity: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	b := must(c.CreateSandbox(ctx, v1.SandboxRequest{Volumes: []v1.VolumeMount{{Volume: "data", Path: "/data"}}}))
	fmt.Println(v.Capacity, b.Volumes)
	// Output: 1GiB [{data /data}]
}

func ExampleClient_VolumeFiles() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateVolume(ctx, v1.VolumeRequest{Name: "data"}))
	files := c.VolumeFiles("data")
	must(files.Write(ctx, "/in/a.txt", strings.NewReader("hello"), client.WithSize(5)))
	f := must(files.Open(ctx, "/in/a.txt"))
	defer f.Close()
	fmt.Println(string(must(io.ReadAll(f))))
	// Output: hello
}

func ExampleClient_Volumes() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateVolume(ctx, v1.VolumeRequest{Name: "b"}))
	must(c.CreateVolume(ctx, v1.VolumeRequest{Name: "a"}))
	for _, v := range must(c.Volumes(ctx)) {
		fmt.Println(v.Name)
	}
	// Output:
	// a
	// b
}

func ExampleClient_Volume() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateVolume(ctx, v1.VolumeRequest{Name: "a"}))
	fmt.Println(must(c.Volume(ctx, "a")).Used)
	// Output: 0B
}

func ExampleClient_RemoveVolume() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateVolume(ctx, v1.VolumeRequest{Name: "a"}))
	check(c.RemoveVolume(ctx, "a"))
	fmt.Println(len(must(c.Volumes(ctx))))
	// Output: 0
}

func ExampleClient_CreateSecret() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	s, err := c.CreateSecret(ctx, v1.SecretRequest{Name: "github", Value: "t0ken"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Name, s.Version)
	// Output: github 1
}

func ExampleClient_UpdateSecret() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSecret(ctx, v1.SecretRequest{Name: "github", Value: "t0ken"}))
	fmt.Println(must(c.UpdateSecret(ctx, "github", v1.SecretUpdate{Value: "other"})).Version)
	// Output: 2
}

func ExampleClient_Secret() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSecret(ctx, v1.SecretRequest{Name: "github", Value: "t0ken", Metadata: map[string]string{"for": "ci"}}))
	fmt.Println(must(c.Secret(ctx, "github")).Metadata)
	// Output: map[for:ci]
}

func ExampleClient_Secrets() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSecret(ctx, v1.SecretRequest{Name: "github", Value: "t0ken"}))
	for _, s := range must(c.Secrets(ctx)) {
		fmt.Println(s.Name)
	}
	// Output: github
}

func ExampleClient_RemoveSecret() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()
	must(c.CreateSecret(ctx, v1.SecretRequest{Name: "github", Value: "t0ken"}))
	check(c.RemoveSecret(ctx, "github"))
	fmt.Println(len(must(c.Secrets(ctx))))
	// Output: 0
}

func ExampleClient_Usage() {
	c, _, stop := sandbox()
	defer stop()
	u := must(c.Usage(context.Background()))
	fmt.Println(u.Used.Sandboxes, "of", u.Quota.Sandboxes)
	// Output: 1 of 100
}

func ExampleClient_RunScript() {
	c, stop := connect()
	defer stop()
	x := must(c.RunScript(context.Background(), v1.ScriptRequest{Language: "javascript", Code: "6*7"}))
	fmt.Println(string(x.Result))
	// Output: 42
}

func ExampleClient_ScriptAPIs() {
	c, stop := connect()
	defer stop()
	fmt.Println(len(must(c.ScriptAPIs(context.Background())).Items))
	// Output: 0
}
