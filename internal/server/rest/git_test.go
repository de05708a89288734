package rest_test

import (
	"bytes"
	"compress/gzip"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// TestGitClones has git itself clone and fetch a workspace.
func TestGitClones(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal("needs git (make setup)")
		}
		t.Skip("needs git (make setup)")
	}
	w := newFixture(t, nil)
	server := httptest.NewServer(w.Handler)
	defer server.Close()
	made := read[v1.Workspace](t, ask(t, w, "POST", "/v1/workspaces", `{"name":"shop","collaborators":[{"owner":"bob","role":"viewer"}]}`), 201)
	write := func(content string) {
		t.Helper()
		read[v1.WorkspaceRevision](t, ask(t, w, "POST", "/v1/workspaces/shop/files", `{"files":[{"path":"src/a","content":"`+content+`"}],"message":"Write `+content+`"}`), 200)
	}
	dir := t.TempDir()
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	at := func(secret, workspace string) string {
		return strings.Replace(server.URL, "://", "://engi:"+secret+"@", 1) + "/v1/workspaces/" + workspace + "/git"
	}
	if out, err := git("clone", "-q", at(w.User, "shop"), "mine"); err != nil || !strings.Contains(out, "empty repository") {
		t.Errorf("%v: %s", err, out)
	}
	write("one")
	if out, err := git("clone", "-q", at(w.Other, made.ID), "theirs"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	write("two")
	for _, name := range []string{"mine", "theirs"} {
		if out, err := git("-C", name, "pull", "-q", "origin", "main"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name, "src/a")); string(got) != "two" {
			t.Errorf("%q, %v", got, err)
		}
		if out, err := git("-C", name, "log", "--format=%s %an"); err != nil || !strings.HasPrefix(out, "Write two ") || strings.Count(out, "\n") != 2 {
			t.Errorf("%v: %s", err, out)
		}
	}
	for what, url := range map[string]string{"no key": server.URL + "/v1/workspaces/shop/git", "a wrong one": at("x", "shop"), "the name of somebody else's": at(w.Other, "shop")} {
		if out, err := git("clone", url, "none"); err == nil {
			t.Errorf("%s: %s", what, out)
		}
	}
	commit := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "mine/src/a"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := git("-C", "mine", "-c", "user.name=me", "-c", "user.email=me@engi.invalid", "commit", "-q", "-a", "-m", "Commit "+text[:3]); err != nil {
			t.Fatal(out, err)
		}
	}
	commit("three")
	if out, err := git("-C", "mine", "push", at(w.User, "shop"), "HEAD:other"); err == nil || !strings.Contains(out, "[remote rejected] HEAD -> other (a workspace has the branch main") {
		t.Errorf("another branch: %v: %s", err, out)
	}
	for _, text := range []string{"three", strings.Repeat("four", 1<<20)} { // the latter in more than one chunk
		commit(text + "!")
		if out, err := git("-C", "mine", "-c", "core.compression=0", "push", "-q", at(w.User, "shop"), "HEAD:main"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if rec := ask(t, w, "GET", "/v1/workspaces/shop/files?path=src/a", ""); rec.Body.String() != text+"!" {
			t.Errorf("there is %.20q", rec.Body)
		}
	}
	last := read[v1.List[v1.WorkspaceRevision]](t, ask(t, w, "GET", "/v1/workspaces/shop/revisions?limit=1", ""), 200).Items[0]
	if head, err := git("-C", "mine", "rev-parse", "HEAD"); err != nil || last.Commit != strings.TrimSpace(head) || last.Message != "Commit fou" || last.Actor == "" {
		t.Errorf("%+v is %s, %v", last, head, err)
	}
	write("five")
	commit("mine")
	if out, err := git("-C", "mine", "push", "--force", at(w.User, "shop"), "HEAD:main"); err == nil || !strings.Contains(out, "the last revision") || !strings.Contains(out, "remote: pull first") {
		t.Errorf("what does not have the last one: %v: %s", err, out)
	}
	if out, err := git("-C", "theirs", "push", at(w.Other, made.ID), "HEAD:main"); err == nil || !strings.Contains(out, "403") {
		t.Errorf("a viewer pushes: %v: %s", err, out)
	}
	_, reader, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := git("-C", "mine", "push", "--force", at(reader, "shop"), "HEAD:main"); err == nil || !strings.Contains(out, "403") {
		t.Errorf("a key that may only read pushes: %v: %s", err, out)
	}

	const refs = "/v1/workspaces/shop/git/info/refs?service=git-upload-pack"
	if rec := ask(t, w, "GET", refs, "", "Authorization", ""); rec.Code != 401 || rec.Header().Get("WWW-Authenticate") != `Basic realm="engi"` {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	// Where only programs ask, a browser must never be made to remember a key.
	basic := httptest.NewRequest("GET", "/v1/workspaces", nil)
	basic.SetBasicAuth("engi", w.User)
	if rec := ask(t, w, "GET", "/v1/workspaces", "", "Authorization", basic.Header.Get("Authorization")); rec.Code != 401 || rec.Header().Get("WWW-Authenticate") != `Bearer realm="engi"` {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	refused(t, ask(t, w, "GET", "/v1/workspaces/shop/git/info/refs?service=git-upload-archive", ""), 501, engi.Unsupported)
	const push = "/v1/workspaces/shop/git/git-receive-pack"
	refused(t, ask(t, w, "POST", push, "nonsense"), 400, engi.Invalid)
	refused(t, ask(t, w, "POST", push, "nonsense", "Content-Encoding", "gzip"), 400, engi.Invalid)
	const fetch = "/v1/workspaces/shop/git/git-upload-pack"
	refused(t, ask(t, w, "POST", fetch, "0032want "+strings.Repeat("a", 40)+"\n00000009done\n"), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", fetch, "nonsense"), 400, engi.Invalid)
	refused(t, ask(t, w, "POST", fetch, "nonsense", "Content-Encoding", "gzip"), 400, engi.Invalid)
	var b bytes.Buffer // a little that becomes a lot
	z := gzip.NewWriter(&b)
	line := []byte("0032have " + strings.Repeat("b", 40) + "\n")
	if _, err := z.Write([]byte("0032want " + strings.Repeat("a", 40) + "\n0000")); err != nil {
		t.Fatal(err)
	}
	for range 1 << 20 {
		if _, err := z.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	refused(t, ask(t, w, "POST", fetch, b.String(), "Content-Encoding", "gzip"), 400, engi.Invalid)
	damaged := b.Bytes()
	copy(damaged[20:], bytes.Repeat([]byte{0xff}, 40))
	refused(t, ask(t, w, "POST", fetch, string(damaged), "Content-Encoding", "gzip"), 400, engi.Invalid)
}
