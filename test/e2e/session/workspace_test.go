package session

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// makeFiles writes files whose content depends on version, links and modes among
// them; describe returns a hash of everything below /workspace.
const (
	makeFiles = `
const version = %d;
for (let d = 0; d < 3; d++) {
	await Deno.mkdir("data/" + d, { recursive: true });
	for (let f = 0; f < 40; f++) {
		const name = "data/" + d + "/" + f + (f === 7 ? " ü\n" : "");
		await Deno.writeTextFile(name, (name + (f %% 10 === 0 ? version : "")).repeat(20));
		if (f === 3) await Deno.chmod(name, 0o751);
	}
}
await Deno.writeFile("large", new Uint8Array(3 << 20).map((_, i) => (i * 31 + (i >> 12) * version) & 255));
try { await Deno.symlink("/etc/hostname", "out"); await Deno.symlink("data/1", "in"); } catch { /* they are there */ }
1`
	describe = `
import { createHash } from "node:crypto";
const hash = createHash("sha256");
let n = 0;
async function walk(dir: string) {
	const all = [];
	for await (const e of Deno.readDir(dir)) all.push(e.name);
	for (const name of all.sort()) {
		const at = dir + "/" + name;
		const st = await Deno.lstat(at);
		hash.update(at + " " + st.mode + " " + (st.isSymlink ? "" : st.mtime!.getTime()) + "\0");
		n++;
		if (st.isSymlink) hash.update(await Deno.readLink(at));
		else if (st.isDirectory) await walk(at);
		else hash.update(await Deno.readFile(at));
	}
}
await walk(".");
n + " " + hash.digest("hex")`
)

// TestWorkspaceOutlivesTheDisk saves files of a sandbox to a server for S3, kills the
// node, also during a save, removes its disk, and restores on another node the files
// of one of the copies. TestKilledCopies in internal/session/backup tests this with
// 10,000 files.
func TestWorkspaceOutlivesTheDisk(t *testing.T) {
	env.Slow(t)
	at, _ := env.S3(t)
	options := env.ServerOptions{Config: fmt.Sprintf("[sandbox]\nworkspaces = %q\nvolume_capacity = \"128MiB\"\n", at)}
	ctx := t.Context()
	code := func(s *env.Server, code string) string {
		t.Helper()
		x, err := s.RunCode(ctx, "nb", v1.CodeRequest{Code: code})
		if err != nil || !x.Success {
			t.Fatalf("%v %s %s", err, x.Error, x.Stderr)
		}
		var text string
		if json.Unmarshal(x.Result, &text) != nil {
			text = string(x.Result)
		}
		return text
	}
	create := func(s *env.Server) {
		t.Helper()
		if _, err := s.CreateSession(ctx, v1.SessionRequest{Name: "nb", Persistence: "workspace"}); err != nil {
			t.Fatal(err)
		}
	}
	s := env.Serve(t, options)
	create(s)
	code(s, fmt.Sprintf(makeFiles, 1))
	whole := code(s, describe)
	began := time.Now()
	if x, err := s.ReleaseSession(ctx, "nb"); err != nil || x.SavedAt == nil {
		t.Fatalf("%+v, %v", x, err)
	}
	took := time.Since(began)
	began = time.Now()
	again, err := s.SaveSession(ctx, "nb")
	if err != nil || again.Uploaded != 0 || again.Files < 125 {
		t.Fatalf("%+v, %v", again, err)
	}
	again1 := time.Since(began)
	s.Kill()

	began = time.Now()
	s = env.Serve(t, options) // a new, empty directory
	create(s)
	if got := code(s, describe); got != whole {
		t.Fatalf("restored %s, want %s", got, whole)
	}
	t.Logf("saved in %v, again in %v, restored and read in %v", took, again1, time.Since(began))

	// The node is killed while it saves another version.
	for i, after := range []time.Duration{40 * time.Millisecond} {
		code(s, fmt.Sprintf(makeFiles, 2+i))
		next := code(s, describe)
		saving, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { _, err := s.SaveSession(saving, "nb"); done <- err }()
		time.Sleep(after)
		s.Kill()
		cancel()
		saved := <-done == nil
		s = env.Serve(t, options)
		create(s)
		got := code(s, describe)
		if got != next && (saved || got != whole) {
			t.Fatalf("killed after %v: restored %s, want %s or %s", after, got, whole, next)
		}
		t.Logf("killed after %v: the new copy %t", after, got == next)
		whole = got
	}
}
