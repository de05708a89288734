package session

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// A gitServer serves repositories with git itself, to clients with the password.
type gitServer struct {
	t    *testing.T
	dir  string
	cgi  *cgi.Handler
	lock sync.Mutex
	seen []string // requests with the password; guarded by lock
}

const (
	gitUser     = "bot"
	gitPassword = "git-7f20c1aa93e84d11"
)

func newGitServer(t *testing.T) *gitServer {
	t.Helper()
	s := &gitServer{t: t, dir: t.TempDir()}
	s.cgi = &cgi.Handler{
		Path: filepath.Join(s.git("", "--exec-path"), "git-http-backend"), Root: "/", Dir: s.dir, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + s.dir, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=" + gitUser, "GIT_CONFIG_COUNT=2",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_CONFIG_KEY_1=uploadpack.allowAnySHA1InWant", "GIT_CONFIG_VALUE_1=true"},
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *gitServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	if user != gitUser || password != gitPassword {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.lock.Lock()
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	s.lock.Unlock()
	s.cgi.ServeHTTP(w, r)
}

func (s *gitServer) requests() []string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return slices.Clone(s.seen)
}

// git runs git on the server.
func (s *gitServer) git(dir string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = filepath.Join(s.dir, dir)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@git.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@git.test")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("git %q: %v\n%s%s", args, err, out, said.String())
	}
	return strings.TrimSpace(string(out))
}

// repository creates the bare repository team/NAME.git with two commits, and
// returns the first commit.
func (s *gitServer) repository(name string, more ...func(work string)) (first string) {
	s.t.Helper()
	work := "work-" + name
	s.git("", "init", "-q", "-b", "main", work)
	for i, text := range []string{"one\n", "two\n"} {
		if err := os.WriteFile(filepath.Join(s.dir, work, "file"), []byte(name+" "+text), 0o644); err != nil {
			s.t.Fatal(err)
		}
		for _, f := range more {
			f(work)
		}
		more = nil
		s.git(work, "add", "--all")
		s.git(work, "commit", "-q", "-m", text)
		if i == 0 {
			first = s.git(work, "rev-parse", "HEAD")
		}
	}
	bare := filepath.Join("team", name+".git")
	s.git("", "clone", "-q", "--bare", work, bare)
	s.git(bare, "config", "http.receivepack", "true")
	return first
}

// inside runs a program in a session and returns its output and its exit code.
func (n *running) inside(t *testing.T, id engi.SessionID, user string, args ...string) (string, int) {
	t.Helper()
	g, release, err := n.Sessions.Enter(t.Context(), engi.Everyone, string(id))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	p, err := g.Start(t.Context(), engi.Command{Args: args, User: user, Dir: "/workspace", Timeout: time.Minute, Env: map[string]string{"GIT_TERMINAL_PROMPT": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for c, err := range p.Output(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		out.Write(c.Data)
	}
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String()), exit.Code
}

// client returns a client with a key of an owner.
func (n *running) client(t *testing.T, owner string) *client.Client {
	t.Helper()
	k, err := client.New(n.Endpoint().URL, n.AdminKey()).CreateKey(t.Context(), v1.KeyRequest{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	return client.New(n.Endpoint().URL, k.Secret)
}

// events returns the types of a session's events, oldest first.
func (n *running) events(t *testing.T, id engi.SessionID, prefix string) (types []string) {
	t.Helper()
	all, err := n.Node.Events().List(t.Context(), engi.Everyone, engi.EventFilter{Subject: string(id), Types: []string{prefix + "*"}, Oldest: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		types = append(types, strings.TrimPrefix(e.Type, prefix))
	}
	return types
}

// TestGit tests the work on a repository from end to end: a clone with a password that
// the egress gateway inserts, pushes on demand, on release and at the end, a conflict,
// and the limits of the password in a session.
func TestGit(t *testing.T) {
	env.Slow(t)
	server := newGitServer(t)
	server.repository("lib")
	first := server.repository("app", func(work string) {
		server.git(work, "submodule", "--quiet", "add", filepath.Join(server.dir, "team", "lib.git"), "lib")
		server.git(work, "config", "--file", ".gitmodules", "submodule.lib.url", "../lib.git")
	})
	server.repository("other")
	serveSite(t, server, "git.test")
	c := settings(t, newRegistry(t), "[network]\nhosts = [\"git.test="+outside+"\"]\n\n[sandbox]\n")
	n := run(t, c)
	n.installed(t)
	ann := n.client(t, "ann")
	if _, err := ann.CreateSecret(t.Context(), v1.SecretRequest{Name: "git", Hosts: []string{"git.test"}, Value: gitPassword}); err != nil {
		t.Fatal(err)
	}
	spec := engi.GitSpec{URL: "https://git.test/team/app.git", Secret: "git", User: gitUser, Submodules: true, Push: &engi.GitPush{OnRelease: true, Author: "Ann <ann@git.test>", Message: "From the session"}}
	s := n.session(t, engi.SessionSpec{Owner: "ann", Name: "fix", Git: &spec})

	if out, code := n.inside(t, s.ID, "", "cat", "app/file", "app/lib/file"); code != 0 || out != "app two\nlib two" {
		t.Fatalf("cloned: %d %s", code, out)
	}
	if got := server.requests(); !slices.Contains(got, "POST /team/lib.git/git-upload-pack") {
		t.Errorf("requests with the password: %q", got)
	}

	// The password is nowhere in the sandbox, not even for root. The pattern does not
	// match itself; a control shows that the search works.
	const pattern = "'[g]it-7f20c1aa93e8'"
	if out, _ := n.inside(t, s.ID, "", "sh", "-c", "echo "+gitPassword+" > app/.git/there; grep -rlsa "+pattern+" /workspace; rm app/.git/there"); out != "/workspace/app/.git/there" {
		t.Errorf("the search finds %s", out)
	}
	if out, code := n.inside(t, s.ID, "root", "sh", "-c", "grep -rlsa "+pattern+" /workspace /root /home /tmp /var/tmp /etc /run; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2> /dev/null | grep -ca "+pattern); out != "0" {
		t.Errorf("the password is inside: %d %s", code, out)
	}
	// The password is added only to git's requests for these repositories.
	before := len(server.requests())
	if out, code := n.inside(t, s.ID, "", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://git.test/team/app.git/config"); out != "403" {
		t.Errorf("another path of the repository: %d %s", code, out)
	}
	reader := n.session(t, engi.SessionSpec{Owner: "ann", Git: &engi.GitSpec{URL: "https://git.test/team/app.git", Ref: first, Secret: "git", User: gitUser, Dir: "src/app"}})
	if out, code := n.inside(t, reader.ID, "", "sh", "-c", "cat src/app/file; cd src/app; git rev-parse HEAD"); code != 0 || out != "app one\n"+first {
		t.Errorf("a commit: %d %s", code, out)
	}
	if out, code := n.inside(t, reader.ID, "", "git", "ls-remote", "https://git.test/team/other.git"); code == 0 {
		t.Errorf("another repository: %s", out)
	}
	if out, code := n.inside(t, reader.ID, "", "sh", "-c", "cd src/app && git push origin HEAD:refs/heads/own"); code == 0 || !strings.Contains(out, "403") {
		t.Errorf("a push without leave: %d %s", code, out)
	}
	if _, err := ann.PushSession(t.Context(), string(reader.ID), v1.GitPush{}); !client.IsKind(err, v1.Denied) {
		t.Errorf("%v", err)
	}
	for _, r := range server.requests()[before:] {
		if !strings.HasPrefix(r, "GET /team/app.git/info/refs") && r != "POST /team/app.git/git-upload-pack" {
			t.Errorf("the password went with %s", r)
		}
	}
	if _, err := n.client(t, "bob").PushSession(t.Context(), string(s.ID), v1.GitPush{}); !client.IsKind(err, v1.NotFound) {
		t.Errorf("another owner pushes: %v", err)
	}

	// Push on demand.
	n.inside(t, s.ID, "", "sh", "-c", "echo mine > app/mine; chmod 755 app/mine; rm app/file")
	done, err := ann.PushSession(t.Context(), "fix", v1.GitPush{Branch: "topic/a", Message: "Mine\n\nand why"})
	if err != nil || done.Branch != "topic/a" || done.Conflict || done.Unchanged {
		t.Fatalf("%+v, %v", done, err)
	}
	const bare = "team/app.git"
	if got := server.git(bare, "log", "-1", "--format=%H %an %ae %cn %B", "topic/a"); got != done.Commit+" Ann ann@git.test Ann Mine\n\nand why" {
		t.Errorf("the commit: %s", got)
	}
	if got := server.git(bare, "ls-tree", "--format=%(objectmode) %(path)", "topic/a"); got != "100644 .gitmodules\n160000 lib\n100755 mine" {
		t.Errorf("its files: %s", got)
	}
	if again, err := ann.PushSession(t.Context(), "fix", v1.GitPush{Branch: "topic/a"}); err != nil || !again.Unchanged || again.Commit != done.Commit {
		t.Errorf("%+v, %v", again, err)
	}

	// Another user has pushed to the branch.
	server.git("", "clone", "-q", "-b", "topic/a", bare, "theirs")
	server.git("theirs", "commit", "-q", "--allow-empty", "-m", "theirs")
	server.git("theirs", "push", "-q", "origin", "topic/a")
	theirs := server.git("theirs", "rev-parse", "HEAD")
	n.inside(t, s.ID, "", "sh", "-c", "echo more > app/mine")
	conflict, err := ann.PushSession(t.Context(), "fix", v1.GitPush{Branch: "topic/a"})
	if err != nil || !conflict.Conflict || conflict.Branch != "topic/a-conflict-"+conflict.Commit[:12] {
		t.Fatalf("%+v, %v", conflict, err)
	}
	if a, b := server.git(bare, "rev-parse", "topic/a"), server.git(bare, "rev-parse", conflict.Branch); a != theirs || b != conflict.Commit {
		t.Errorf("topic/a is %s, want %s; the new branch %s, want %s", a, theirs, b, conflict.Commit)
	}

	// Push on release, and at the end; only if there are changes.
	if err := n.Release(t.Context(), "ann", "fix"); err != nil {
		t.Fatal(err)
	}
	if got := server.git(bare, "for-each-ref", "--format=%(refname)", "refs/heads/engi"); got != "refs/heads/engi/fix" {
		t.Errorf("on release: %q", got)
	}
	if out, _ := n.inside(t, s.ID, "", "sh", "-c", "cat app/mine; echo last > app/last"); out != "more" {
		t.Errorf("after release: %s", out)
	}
	if err := n.Terminate(t.Context(), "ann", "fix"); err != nil {
		t.Fatal(err)
	}
	if got := server.git(bare, "show", "engi/fix:last"); got != "last" {
		t.Errorf("at the end: %s", got)
	}
	want := []string{"cloned", "pushed", "conflict", "pushed", "pushed"}
	if got := n.events(t, s.ID, "session.git_"); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	quiet := n.session(t, engi.SessionSpec{Owner: "ann", Name: "quiet", Git: &spec})
	n.inside(t, quiet.ID, "", "true")
	if err := n.Release(t.Context(), "ann", "quiet"); err != nil {
		t.Fatal(err)
	}
	if got := server.git(bare, "for-each-ref", "--format=%(refname)", "refs/heads/engi"); got != "refs/heads/engi/fix" {
		t.Errorf("a session that changed nothing: %q", got)
	}
	// Push also when a session is not used.
	left := n.session(t, engi.SessionSpec{Owner: "ann", Name: "left", Git: &spec, Dormancy: time.Second})
	n.inside(t, left.ID, "", "sh", "-c", "echo left > app/left")
	wait(t, "it is dormant", func() (engi.Session, bool) {
		x, err := n.Sessions.Get(t.Context(), "ann", "left")
		return x, err != nil || x.Sandbox == ""
	})
	if got := server.git(bare, "show", "engi/left:left"); got != "left" {
		t.Errorf("after dormancy: %s", got)
	}
}

// TestGitFails checks the error of a session whose repository cannot be cloned, and that
// work that cannot be pushed is kept.
func TestGitFails(t *testing.T) {
	env.Slow(t)
	server := newGitServer(t)
	server.repository("app")
	serveSite(t, server, "git.test")
	c := settings(t, newRegistry(t), "[network]\nhosts = [\"git.test="+outside+"\"]\n\n[sandbox]\n")
	n := run(t, c)
	n.installed(t)
	ann := n.client(t, "ann")
	if _, err := ann.CreateSecret(t.Context(), v1.SecretRequest{Name: "git", Hosts: []string{"git.test"}, Value: "wrong"}); err != nil {
		t.Fatal(err)
	}
	spec := engi.GitSpec{URL: "https://git.test/team/app.git", Secret: "git", User: gitUser, Push: &engi.GitPush{OnRelease: true}}
	s := n.session(t, engi.SessionSpec{Owner: "ann", Name: "s", Git: &spec})
	enter := func() error {
		_, release, err := n.Sessions.Enter(t.Context(), "ann", "s")
		if err == nil {
			release()
		}
		return err
	}
	if err := enter(); err == nil || engi.RemedyOf(err) == "" || !strings.Contains(err.Error(), "git clone") {
		t.Fatalf("a wrong password: %v", err)
	}
	change := func(value string) {
		if _, err := ann.UpdateSecret(t.Context(), "git", v1.SecretUpdate{Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	change(gitPassword)
	if err := enter(); err != nil {
		t.Fatal(err)
	}
	n.inside(t, s.ID, "", "sh", "-c", "echo mine > app/mine")
	change("wrong")
	if err := n.Release(t.Context(), "ann", "s"); err != nil {
		t.Fatal(err)
	}
	if got := n.events(t, s.ID, "session.git_"); !slices.Equal(got, []string{"cloned", "failed"}) {
		t.Errorf("events %q", got)
	}
	change(gitPassword)
	n.inside(t, s.ID, "", "true")
	if err := n.Release(t.Context(), "ann", "s"); err != nil {
		t.Fatal(err)
	}
	if got := server.git("team/app.git", "show", "engi/s:mine"); got != "mine" {
		t.Errorf("pushed: %s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for url, want := range map[string]string{
		"https://ann:pw@git.test/team/app.git": "engi secret set", "ssh://git@git.test/team/app.git": "https", "http://git.test/team/app.git": "network.allow",
		"https://git.test/../etc": "write it like", "https://git.test/": "write it like", "https://git.test/team/app.git?x": "write it like", "--upload-pack=x": "https",
	} {
		_, err := n.Sessions.Create(ctx, engi.SessionSpec{Owner: "ann", Git: &engi.GitSpec{URL: url}})
		if err == nil || !strings.Contains(engi.RemedyOf(err), want) || strings.Contains(err.Error(), "pw@") {
			t.Errorf("%s: %v, remedy %q, want %q", url, err, engi.RemedyOf(err), want)
		}
	}
}
