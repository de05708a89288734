package transfer_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
	"github.com/engi-dev/engi/internal/workspace/transfer"
)

// A host has a repository that git has created, and serves its branches.
type host struct {
	t       *testing.T
	dir     string
	mu      sync.Mutex
	objects map[string]repo.Object
	refs    []transfer.Ref
	url     string
	asked   int // number of requests for packs
	packed  int // number of objects of the last pack
}

func newHost(t *testing.T) *host {
	h := &host{t: t, dir: t.TempDir(), objects: map[string]repo.Object{}}
	h.git(h.dir, "init", "-q", "-b", "main")
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	h.url = server.URL + "/repo"
	return h
}

func (h *host) git(dir string, args ...string) string {
	h.t.Helper()
	out, err := try(dir, args...)
	if err != nil {
		h.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

func try(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.invalid", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b.invalid")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// publish serves the current state of the repository.
func (h *host) publish() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for line := range strings.Lines(h.git(h.dir, "cat-file", "--batch-all-objects", "--batch-check")) {
		f := strings.Fields(line)
		if _, ok := h.objects[f[0]]; ok || f[1] == "tag" {
			continue
		}
		cmd := exec.Command("git", "cat-file", f[1], f[0])
		cmd.Dir = h.dir
		content, err := cmd.Output()
		if err != nil {
			h.t.Fatal(err)
		}
		o, err := repo.New(repo.Kind(f[1]), content)
		if err != nil || o.Hash != f[0] {
			h.t.Fatal(o.Hash, err)
		}
		h.objects[o.Hash] = o
	}
	h.refs = nil
	out, _ := try(h.dir, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads")
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		h.refs = append(h.refs, transfer.Ref{Name: f[1], Hash: f[0]})
	}
}

func (h *host) source(_ context.Context, hash string) (repo.Object, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o, ok := h.objects[hash]
	if !ok {
		return o, engi.Errorf(engi.NotFound, "there is no object %s", hash)
	}
	return o, nil
}

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	refs := h.refs
	h.mu.Unlock()
	switch r.URL.Path {
	case "/repo/info/refs":
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		if err := transfer.Advertise(w, refs); err != nil {
			h.t.Error(err)
		}
	case "/repo/git-upload-pack":
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(body)
			if err != nil {
				h.t.Error(err)
				return
			}
			body = z
		}
		q, err := transfer.Read(body)
		if err != nil {
			h.t.Error(err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		var b bytes.Buffer
		if err := q.Answer(r.Context(), &b, h.source); err != nil {
			h.t.Error(err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.asked++
		if _, pack, ok := bytes.Cut(b.Bytes(), []byte("PACK\x00\x00\x00\x02")); ok {
			h.packed = int(binary.BigEndian.Uint32(pack))
		}
		h.mu.Unlock()
		_, _ = b.WriteTo(w) // the client may have disconnected
	default:
		http.NotFound(w, r)
	}
}

// commit makes a commit that changes some files.
func (h *host) commit(r *rand.Rand, message string) {
	h.t.Helper()
	for range 1 + r.IntN(3) {
		p := filepath.Join(h.dir, fmt.Sprintf("d%d", r.IntN(3)), fmt.Sprintf("f%d", r.IntN(5)))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			h.t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(fmt.Sprint(r.Uint64(), strings.Repeat("x", r.IntN(300)))), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	h.git(h.dir, "add", "-A")
	h.git(h.dir, "commit", "-q", "-m", message)
}

// same fails unless a clone equals a branch of the host.
func (h *host) same(dir, branch string) {
	h.t.Helper()
	if out := h.git(dir, "fsck", "--strict", "--full"); strings.Contains(out, "error") || strings.Contains(out, "missing") {
		h.t.Errorf("fsck: %s", out)
	}
	want, got := h.git(h.dir, "rev-parse", branch+"^{tree}", branch), h.git(dir, "rev-parse", "origin/"+branch+"^{tree}", "origin/"+branch)
	if got != want {
		h.t.Errorf("the clone has %s, want %s", got, want)
	}
	if h.git(dir, "rev-parse", "--is-shallow-repository") == "false" {
		if want, got := h.git(h.dir, "rev-list", "--objects", branch), h.git(dir, "rev-list", "--objects", "origin/"+branch); got != want {
			h.t.Errorf("the clone of %s has %d lines of objects, want %d", branch, strings.Count(got, "\n"), strings.Count(want, "\n"))
		}
	}
}

func needGit(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal("needs git (make setup)")
		}
		t.Skip("needs git (make setup)")
	}
}

// TestGit makes git itself clone, fetch, deepen and unshallow random histories with merges.
func TestGit(t *testing.T) {
	needGit(t)
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			h := newHost(t)
			h.publish()
			empty := filepath.Join(t.TempDir(), "empty")
			h.git(t.TempDir(), "clone", "-q", h.url, empty)

			h.commit(r, "first")
			branches := []string{"main"}
			var clones []string
			for i := range 30 {
				switch n := r.IntN(10); {
				case n < 5:
					h.commit(r, fmt.Sprint(i))
				case n < 6 && len(branches) < 4:
					b := fmt.Sprintf("b%d", i)
					h.git(h.dir, "checkout", "-q", "-b", b)
					branches = append(branches, b)
				case n < 8:
					h.git(h.dir, "checkout", "-q", branches[r.IntN(len(branches))])
					h.commit(r, fmt.Sprint(i))
				default:
					h.git(h.dir, "merge", "-q", "-s", "ours", "-m", "merge", branches[r.IntN(len(branches))])
				}
				h.publish()
				var args []string
				switch r.IntN(3) {
				case 0:
					args = []string{"--depth", fmt.Sprint(1 + r.IntN(4)), "--no-single-branch"}
				case 1:
					args = []string{"--single-branch"}
				}
				if i%5 == 0 {
					dir := filepath.Join(t.TempDir(), "c")
					h.git(h.dir, append(append([]string{"clone", "-q"}, args...), h.url, dir)...)
					h.git(dir, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
					clones = append(clones, dir)
				}
				if len(clones) == 0 {
					continue
				}
				dir := clones[r.IntN(len(clones))]
				switch n := r.IntN(8); {
				case n == 0:
					h.git(dir, "fetch", "-q", "--depth", fmt.Sprint(1+r.IntN(6)))
				case n == 1 && h.git(dir, "rev-parse", "--is-shallow-repository") == "true":
					h.git(dir, "fetch", "-q", "--unshallow")
					if h.git(dir, "rev-parse", "--is-shallow-repository") != "false" {
						t.Error("the clone is shallow still")
					}
				default:
					h.git(dir, "fetch", "-q")
				}
				for _, b := range branches {
					h.same(dir, b)
				}
			}
			h.git(empty, "fetch", "-q")
			for _, b := range branches {
				h.same(empty, b)
			}
		})
	}
}

// count returns the number of objects of the commits of main from one to another, counted
// back from the last commit.
func (h *host) count(from, to int) int {
	all := map[string]bool{}
	for i := from; i < to; i++ {
		rev := fmt.Sprintf("main~%d", i)
		all[h.git(h.dir, "rev-parse", rev)] = true
		all[h.git(h.dir, "rev-parse", rev+"^{tree}")] = true
		for line := range strings.Lines(h.git(h.dir, "ls-tree", "-r", "-t", rev)) {
			all[strings.Fields(line)[2]] = true
		}
	}
	return len(all)
}

// TestFetchSendsWhatIsNew counts the sent objects.
func TestFetchSendsWhatIsNew(t *testing.T) {
	needGit(t)
	r := rand.New(rand.NewPCG(1, 2))
	h := newHost(t)
	for i := range 50 {
		h.commit(r, fmt.Sprint(i))
	}
	h.publish()
	dir := filepath.Join(t.TempDir(), "c")
	sent := func(what string, want int, args ...string) {
		t.Helper()
		h.mu.Lock()
		h.asked, h.packed = 0, 0
		h.mu.Unlock()
		h.git(dir, args...)
		h.same(dir, "main")
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.packed != want {
			t.Errorf("%s: %d objects were sent, want %d", what, h.packed, want)
		}
	}
	h.git(h.dir, "init", "-q", dir)
	h.git(dir, "remote", "add", "origin", h.url)
	sent("two commits", h.count(0, 2), "fetch", "-q", "--depth", "2", "origin")
	sent("thirty more", h.count(0, 32)-h.count(0, 2), "fetch", "-q", "--depth", "32")
	sent("all others", h.count(0, 50)-h.count(0, 32), "fetch", "-q", "--unshallow")
	h.commit(r, "new")
	h.publish()
	// The client sends more than one list of commits that only the client has.
	h.git(dir, "checkout", "-q", "-b", "mine", "origin/main")
	for i := range 60 {
		h.git(dir, "commit", "-q", "--allow-empty", "-m", fmt.Sprint("mine ", i))
	}
	sent("the new one", h.count(0, 51)-h.count(1, 51), "fetch", "-q")
	h.mu.Lock()
	asked := h.asked
	h.mu.Unlock()
	if asked < 2 {
		t.Error("one list had all that the client has")
	}
	sent("nothing", 0, "fetch", "-q")
}

func FuzzRead(f *testing.F) {
	hash := strings.Repeat("a", 40)
	packet := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	f.Add(packet("want "+hash+" multi_ack_detailed no-done side-band-64k agent=git/2\n") + packet("deepen 3\n") + packet("shallow "+hash) + "0000" + packet("have "+hash) + "0000")
	f.Add(packet("want "+hash+"\n") + "0000" + packet("done\n"))
	f.Add("0000")
	f.Add("fff1")
	f.Fuzz(func(t *testing.T, s string) {
		q, err := transfer.Read(strings.NewReader(s))
		if err != nil {
			if k := engi.KindOf(err); k != engi.Invalid && k != engi.Unsupported && k != engi.Exhausted {
				t.Errorf("%v is %v", err, k)
			}
			return
		}
		none := func(context.Context, string) (repo.Object, error) {
			return repo.Object{}, engi.Errorf(engi.NotFound, "there is no such object")
		}
		if err := q.Answer(t.Context(), io.Discard, none); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
	})
}
