package transfer_test

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
	"github.com/engi-dev/engi/internal/workspace/transfer"
)

// A receiver is a host that accepts pushes. It has one branch.
type receiver struct {
	*host
	recorded int // number of objects of the last push
	commits  int
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{host: newHost(t)}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.url = server.URL + "/repo"
	return r
}

func (h *receiver) known(ctx context.Context, kind repo.Kind, hashes []string) (map[string]int64, error) {
	sizes := map[string]int64{}
	for _, hash := range hashes {
		if o, err := h.source(ctx, hash); err == nil && o.Kind == kind {
			sizes[hash] = o.Size
		}
	}
	return sizes, nil
}

func (h *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/repo/info/refs" && r.URL.Query().Get("service") == "git-receive-pack":
		w.Header().Set("Content-Type", "application/x-git-receive-pack-advertisement")
		h.mu.Lock()
		defer h.mu.Unlock()
		if err := transfer.AdvertisePush(w, h.refs); err != nil {
			h.t.Error(err)
		}
	case r.URL.Path == "/repo/git-receive-pack":
		w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		in := bufio.NewReader(r.Body)
		p, err := transfer.ReadPush(in)
		if err != nil {
			h.t.Error(err)
			return
		}
		u, ok := p.Of("refs/heads/main")
		if ok {
			err = h.take(r.Context(), u, in)
		} else {
			_, err = io.Copy(io.Discard, in)
		}
		if e := p.Report(w, func(u transfer.Update) error {
			if u.Name != "refs/heads/main" {
				return engi.Errorf(engi.Invalid, "there is main alone").WithRemedy("push to main")
			}
			return err
		}); e != nil {
			h.t.Error(e)
		}
	default:
		h.host.ServeHTTP(w, r)
	}
}

func (h *receiver) take(ctx context.Context, u transfer.Update, in io.Reader) error {
	pack, err := transfer.Unpack(ctx, in, h.source, func(int64) error { return nil })
	if err != nil {
		return err
	}
	a, err := pack.Added(ctx, u.Old, u.New, h.known)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refs) > 0 && h.refs[0].Hash != u.Old {
		return engi.Errorf(engi.Conflict, "there is another commit")
	}
	for _, o := range a.Objects {
		if _, again := h.objects[o.Hash]; again {
			h.t.Errorf("the object %s is recorded again", o.Hash)
		}
		h.objects[o.Hash] = o
	}
	h.recorded, h.commits, h.refs = len(a.Objects), a.Commits, []transfer.Ref{{Name: u.Name, Hash: u.New}}
	return nil
}

// TestGitPushes makes two users work with git itself: they push, are refused, merge and
// push again, in packs of all forms.
func TestGitPushes(t *testing.T) {
	needGit(t)
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 2))
			h := newReceiver(t)
			text := make([]byte, 300_000) // two of its versions have much in common
			for i := range text {
				text[i] = byte('a' + r.IntN(26))
			}
			var dirs []string
			for _, name := range []string{"anna", "bert"} {
				dir := filepath.Join(t.TempDir(), name)
				h.git(t.TempDir(), "init", "-q", "-b", "main", dir)
				h.git(dir, "remote", "add", "origin", h.url)
				dirs = append(dirs, dir)
			}
			pushed := 0
			for i := range 25 {
				dir := dirs[r.IntN(2)]
				if pushed > 0 {
					h.git(dir, "fetch", "-q", "origin")
					switch out, _ := try(dir, "rev-parse", "-q", "--verify", "HEAD"); {
					case out == "":
						h.git(dir, "checkout", "-q", "-B", "main", "origin/main")
					case r.IntN(4) > 0: // otherwise it is one step behind
						h.git(dir, "merge", "-q", "-s", "recursive", "-X", "theirs", "--allow-unrelated-histories", "origin/main")
					}
				}
				for j := range 1 + r.IntN(3) {
					copy(text[r.IntN(len(text)-20):], fmt.Sprint("changed ", i, " ", j))
					name := fmt.Sprintf("%s-%d", filepath.Base(dir), r.IntN(3))
					if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
						t.Fatal(err)
					}
					for name, data := range map[string][]byte{name + "/large": text, name + "/small": []byte(fmt.Sprint(i, j))} {
						if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
							t.Fatal(err)
						}
					}
					h.git(dir, "add", "-A")
					h.git(dir, "commit", "-q", "-m", fmt.Sprint(i, " ", j))
				}
				h.mu.Lock()
				before := len(h.objects)
				old := ""
				if len(h.refs) > 0 {
					old = h.refs[0].Hash
				}
				h.mu.Unlock()
				args := []string{"-c", fmt.Sprintf("http.postBuffer=%d", []int{70_000, 1 << 20}[r.IntN(2)]), "-c", fmt.Sprintf("pack.depth=%d", []int{0, 2, 50}[r.IntN(3)]),
					"-c", fmt.Sprintf("core.compression=%d", r.IntN(10)), "push", []string{"--thin", "--no-thin"}[r.IntN(2)], "--force", "origin", "main"}
				want := true
				if old != "" {
					_, err := try(dir, "merge-base", "--is-ancestor", old, "main")
					want = err == nil
				}
				out, err := try(dir, args...)
				if (err == nil) != want || err != nil && !strings.Contains(out, "does not have the last revision") && !strings.Contains(out, "is not there") {
					t.Fatalf("push %d: %v, want %v: %s", i, err, want, out)
				}
				h.mu.Lock()
				recorded, commits, after := h.recorded, h.commits, len(h.objects)
				h.mu.Unlock()
				if err != nil {
					if after != before {
						t.Fatalf("a push that was refused has left %d objects", after-before)
					}
					continue
				}
				pushed++
				since := []string{"main"}
				if old != "" {
					since = append(since, "^"+old)
				}
				if n := strings.Count(h.git(dir, append([]string{"rev-list"}, since...)...)+"\n", "\n"); n != commits {
					t.Errorf("%d commits were recorded, want %d", commits, n)
				}
				if n := strings.Count(h.git(dir, "rev-list", "--objects", "main")+"\n", "\n"); n != after || before+recorded != after {
					t.Errorf("there are %d objects, %d new, want %d", after, recorded, n)
				}
				clone := filepath.Join(t.TempDir(), "clone")
				h.git(t.TempDir(), "clone", "-q", h.url, clone)
				if out := h.git(clone, "fsck", "--strict", "--full"); strings.Contains(out, "error") || strings.Contains(out, "missing") {
					t.Errorf("fsck: %s", out)
				}
				if got, want := h.git(clone, "rev-list", "--objects", "HEAD"), h.git(dir, "rev-list", "--objects", "main"); got != want {
					t.Errorf("the clone has %d objects, want %d", strings.Count(got, "\n"), strings.Count(want, "\n"))
				}
			}
			if pushed < 5 {
				t.Errorf("%d pushes were taken", pushed)
			}
		})
	}
}

// TestGitIsTold makes git push commits that are refused.
func TestGitIsTold(t *testing.T) {
	needGit(t)
	h := newReceiver(t)
	dir := t.TempDir()
	h.git(dir, "init", "-q", "-b", "main")
	h.git(dir, "remote", "add", "origin", h.url)
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.git(dir, "add", "-A")
	h.git(dir, "commit", "-q", "-m", "one")
	h.git(dir, "tag", "-a", "-m", "first", "v1")
	out, err := try(dir, "push", "origin", "main", "v1")
	if err == nil || !strings.Contains(out, "there is main alone") || !strings.Contains(out, "remote: push to main") || !strings.Contains(out, "[new branch]      main -> main") {
		t.Errorf("a tag: %v: %s", err, out)
	}
	if out, err := try(dir, "push", "origin", "--delete", "main"); err == nil || !strings.Contains(out, "[remote rejected] main") {
		t.Errorf("no main: %v: %s", err, out)
	}
	if out, err := try(dir, "push", "origin", "main"); err != nil || !strings.Contains(out, "up-to-date") {
		t.Errorf("nothing new: %v: %s", err, out)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	h.git(dir, "add", "-A")
	h.git(dir, "commit", "-q", "-m", "a link")
	h.git(dir, "rm", "-q", "link")
	h.git(dir, "commit", "-q", "-m", "no link") // it remains in the history
	if out, err := try(dir, "push", "origin", "main"); err == nil || !strings.Contains(out, `"link" is a link or a submodule`) || !strings.Contains(out, "remote: commit a file instead") {
		t.Errorf("a link: %v: %s", err, out)
	}
}

// TestUnpack unpacks packs of git in all forms.
func TestUnpack(t *testing.T) {
	needGit(t)
	r := rand.New(rand.NewPCG(3, 3))
	h := newHost(t)
	text := strings.Repeat("a line of a text that is long\n", 5000)
	for i := range 30 {
		at := r.IntN(len(text))
		text = text[:at] + fmt.Sprint("something new ", i, "\n") + text[at:]
		if err := os.WriteFile(filepath.Join(h.dir, "large"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		h.commit(r, fmt.Sprint(i))
	}
	h.git(h.dir, "tag", "-a", "-m", "annotated", "v1")
	h.publish()
	none := func(context.Context, string) (repo.Object, error) {
		return repo.Object{}, engi.Errorf(engi.NotFound, "there is no such object")
	}
	pack := func(input string, args ...string) []byte {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "pack.threads=1", "pack-objects", "--stdout", "-q", "--revs"}, args...)...)
		cmd.Dir, cmd.Stdin = h.dir, strings.NewReader(input)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err, said.String())
		}
		return out
	}
	sizes := map[int]bool{}
	for _, args := range [][]string{{"--depth=0"}, {"--depth=5"}, {"--depth=5", "--delta-base-offset"}, {"--depth=50", "--window=50", "--delta-base-offset", "--no-reuse-delta"}, {"--depth=4000", "--window=100"}} {
		data := pack("main\nv1\n", args...)
		sizes[len(data)] = true
		p, err := transfer.Unpack(t.Context(), bytes.NewReader(data), none, func(int64) error { return nil })
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		tags := 0
		maps.DeleteFunc(p, func(_ string, o repo.Object) bool {
			if o.Kind == "tag" {
				tags++
			}
			return o.Kind == "tag"
		})
		if d := cmp.Diff(h.objects, map[string]repo.Object(p)); d != "" || tags != 1 {
			t.Errorf("%v: %d tags, %.500s", args, tags, d)
		}
	}
	if len(sizes) < 4 {
		t.Errorf("the packs have %d different sizes, and so hardly different forms", len(sizes))
	}
	// Deltas whose base only the receiver has.
	thin := pack("main\n^main~1\n", "--thin")
	if p, err := transfer.Unpack(t.Context(), bytes.NewReader(thin), h.source, func(int64) error { return nil }); err != nil || len(p) < 3 {
		t.Errorf("%d objects, %v", len(p), err)
	}
	if _, err := transfer.Unpack(t.Context(), bytes.NewReader(thin), none, func(int64) error { return nil }); !engi.Is(err, engi.Invalid) || !strings.Contains(fmt.Sprint(err), "which does not exist") {
		t.Error(err)
	}
	full := engi.Errorf(engi.Exhausted, "no room")
	if _, err := transfer.Unpack(t.Context(), bytes.NewReader(pack("main\nv1\n")), none, func(int64) error { return full }); err != full {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := transfer.Unpack(ctx, bytes.NewReader(pack("main\nv1\n")), none, func(int64) error { return nil }); !engi.Is(err, engi.Expired) {
		t.Error(err)
	}
}

// A packer makes packs, valid and invalid ones.
type packer struct{ bytes.Buffer }

func newPacker(objects int) *packer {
	p := &packer{}
	p.WriteString("PACK\x00\x00\x00\x02")
	p.Write(binary.BigEndian.AppendUint32(nil, uint32(objects)))
	return p
}

// entry adds an object, or data that only claim to be one.
func (p *packer) entry(kind byte, size int, more string, data []byte) (at int) {
	at = p.Len()
	c := kind<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		p.WriteByte(c | 0x80)
		c = byte(size & 0x7f)
	}
	p.WriteByte(c)
	p.WriteString(more)
	z := zlib.NewWriter(p)
	_, _ = z.Write(data) // writing to a Buffer never fails
	_ = z.Close()
	return at
}

func (p *packer) sealed() []byte {
	sum := sha1.Sum(p.Bytes())
	return append(slices.Clone(p.Bytes()), sum[:]...)
}

func delta(from, to int, ops ...byte) []byte {
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(from)), uint64(to)), ops...)
}

func TestHostilePacks(t *testing.T) {
	none := func(context.Context, string) (repo.Object, error) {
		return repo.Object{}, engi.Errorf(engi.NotFound, "there is no such object")
	}
	unpack := func(data []byte) (transfer.Pack, error) {
		return transfer.Unpack(t.Context(), bytes.NewReader(data), none, func(int64) error { return nil })
	}
	whole := newPacker(3)
	at := whole.entry(3, 10, "", []byte("0123456789"))
	whole.entry(6, 7, string([]byte{byte(whole.Len() - at)}), delta(10, 6, 0x91, 2, 3, 2, 'x', 'y')[:7])
	if _, err := unpack(whole.sealed()); err == nil {
		t.Fatal("a pack with an object less than it says was taken")
	}
	whole = newPacker(2)
	at = whole.entry(3, 10, "", []byte("0123456789"))
	d := delta(10, 5, 0x91, 2, 3, 2, 'x', 'y')
	whole.entry(6, len(d), string([]byte{byte(whole.Len() - at)}), d)
	p, err := unpack(whole.sealed())
	if o, ok := p[repo.HashOf(repo.Blob, []byte("234xy"))]; err != nil || !ok || len(p) != 2 {
		t.Fatal(o, err)
	}
	// Remove and change each byte.
	data := whole.sealed()
	for i := range data {
		if _, err := unpack(data[:i]); !engi.Is(err, engi.Invalid) {
			t.Errorf("cut at %d: %v", i, err)
		}
		for bit := range 8 {
			other := slices.Clone(data)
			other[i] ^= 1 << bit
			if _, err := unpack(other); !engi.Is(err, engi.Invalid, engi.Exhausted) {
				t.Errorf("bit %d of byte %d: %v", bit, i, err)
			}
		}
	}
	one := func(kind byte, size int, more string, data []byte) []byte {
		p := newPacker(1)
		p.entry(kind, size, more, data)
		return p.sealed()
	}
	after := func(d []byte) []byte { // a delta to ten digits
		p := newPacker(2)
		at := p.entry(3, 10, "", []byte("0123456789"))
		p.entry(6, len(d), string([]byte{byte(p.Len() - at)}), d)
		return p.sealed()
	}
	for name, c := range map[string]struct {
		data []byte
		want engi.Kind
	}{
		"a size that is too small":    {one(3, 3, "", []byte("0123")), engi.Invalid},
		"a size that is too large":    {one(3, 5, "", []byte("0123")), engi.Invalid},
		"an object too large":         {one(3, repo.MaxObject+1, "", nil), engi.Exhausted},
		"a size without end":          {append(newPacker(1).Bytes(), bytes.Repeat([]byte{0xff}, 100)...), engi.Invalid},
		"objects without end":         {newPacker(1 << 31).sealed(), engi.Exhausted},
		"no type":                     {one(0, 1, "", []byte("x")), engi.Invalid},
		"a type of the future":        {one(5, 1, "", []byte("x")), engi.Invalid},
		"a difference to itself":      {one(6, len(d), "\x00", d), engi.Invalid},
		"to what was before the pack": {one(6, len(d), "\x7f", d), engi.Invalid},
		"to what is far before":       {one(6, len(d), strings.Repeat("\xff", 20)+"\x00", d), engi.Invalid},
		"to what is not there":        {one(7, len(d), strings.Repeat("a", 20), d), engi.Invalid},
		"of another size":             {after(delta(11, 1, 1, 'x')), engi.Invalid},
		"a result too large":          {after(delta(10, repo.MaxObject+1, 1, 'x')), engi.Exhausted},
		"a result without end":        {after(append(binary.AppendUvarint(nil, 10), bytes.Repeat([]byte{0xff}, 20)...)), engi.Invalid},
		"a result that is shorter":    {after(delta(10, 2, 1, 'x')), engi.Invalid},
		"a result that is longer":     {after(delta(10, 1, 2, 'x', 'y')), engi.Invalid},
		"a copy beyond the end":       {after(delta(10, 5, 0x91, 8, 5)), engi.Invalid},
		"a copy from beyond":          {after(delta(10, 5, 0x9f, 0xff, 0xff, 0xff, 0xff, 5)), engi.Invalid},
		"a copy of 64 KiB":            {after(delta(10, 65536, 0x80)), engi.Invalid},
		"a copy that is cut off":      {after(delta(10, 5, 0xff, 1)), engi.Invalid},
		"an insertion cut off":        {after(delta(10, 5, 5, 'x')), engi.Invalid},
		"a reserved operation":        {after(delta(10, 5, 0, 'x')), engi.Invalid},
		"no operation":                {after(delta(10, 5)), engi.Invalid},
		"no size":                     {after(nil), engi.Invalid},
	} {
		if _, err := unpack(c.data); !engi.Is(err, c.want) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v, want %v (%s)", name, err, c.want, engi.RemedyOf(err))
		}
	}
}

// TestPacksTakeBoundedWork unpacks a few bytes that expand to very many.
func TestPacksTakeBoundedWork(t *testing.T) {
	transfer.SetMaxWork(t, 100<<20)
	const size = 8 << 20
	p := newPacker(1000)
	at := p.entry(3, size, "", make([]byte, size))
	d := []byte{}
	for left := size; left > 0; left -= 0x10000 {
		d = append(d, 0x80)
	}
	for i := range 999 {
		d := delta(size, size+2, append(slices.Clone(d), 2, byte(i), byte(i>>8))...)
		back := p.Len() - at
		more := []byte{byte(back & 0x7f)}
		for back >>= 7; back > 0; back >>= 7 {
			back--
			more = append([]byte{byte(back&0x7f) | 0x80}, more...)
		}
		p.entry(6, len(d), string(more), d)
	}
	taken := int64(0)
	_, err := transfer.Unpack(t.Context(), bytes.NewReader(p.sealed()), nil, func(n int64) error { taken += n; return nil })
	if !engi.Is(err, engi.Exhausted) || taken > 20<<20 {
		t.Errorf("%v, %d bytes taken", err, taken)
	}
}

// shelf holds objects of a test.
type shelf struct {
	t *testing.T
	p transfer.Pack
}

func (s shelf) put(kind repo.Kind, content string) string {
	s.t.Helper()
	o, err := repo.New(kind, []byte(content))
	if err != nil {
		s.t.Fatal(err)
	}
	s.p[o.Hash] = o
	return o.Hash
}

func (s shelf) entry(mode, name, hash string) string {
	s.t.Helper()
	b, err := hex.DecodeString(hash)
	if err != nil {
		s.t.Fatal(err)
	}
	return mode + " " + name + "\x00" + string(b)
}

func (s shelf) commit(tree string, parents ...string) string {
	text := "tree " + tree + "\n"
	for _, p := range parents {
		text += "parent " + p + "\n"
	}
	return s.put(repo.Commit, text+"author a <a@a> 1 +0000\ncommitter a <a@a> 1 +0000\n\nm\n")
}

func TestAdded(t *testing.T) {
	const taken engi.Kind = 255
	absent := strings.Repeat("ab", 20)
	// The receiver has one commit.
	old := shelf{t, transfer.Pack{}}
	oldBlob := old.put(repo.Blob, "old")
	oldTree := old.put(repo.Tree, old.entry("100644", "f", oldBlob))
	last := old.commit(oldTree)
	known := func(_ context.Context, kind repo.Kind, hashes []string) (map[string]int64, error) {
		has := map[string]int64{}
		for _, h := range hashes {
			if o, ok := old.p[h]; ok && o.Kind == kind {
				has[h] = o.Size
			}
		}
		return has, nil
	}
	another := func(s shelf) string {
		return s.put(repo.Commit, "tree "+oldTree+"\nauthor b <b@b> 2 +0000\ncommitter b <b@b> 2 +0000\n\nanother\n")
	}
	tree := func(entries func(s shelf) string) func(s shelf) string {
		return func(s shelf) string { return s.commit(s.put(repo.Tree, entries(s)), last) }
	}
	for name, c := range map[string]struct {
		make func(s shelf) string
		want engi.Kind
		new  int
	}{
		"a file":                     {tree(func(s shelf) string { return s.entry("100644", "f", s.put(repo.Blob, "new")) }), taken, 3},
		"a file that is there":       {tree(func(s shelf) string { return s.entry("100755", "g", oldBlob) }), taken, 2},
		"files that are there":       {func(s shelf) string { return s.commit(oldTree, last) }, taken, 1},
		"an order that is git's":     {tree(func(s shelf) string { return s.entry("100644", "a.b", oldBlob) + s.entry("40000", "a", oldTree) }), taken, 2},
		"what nothing leads to":      {func(s shelf) string { s.put(repo.Blob, "stray"); return s.commit(oldTree, last) }, taken, 1},
		"a merge with what is new":   {func(s shelf) string { return s.commit(oldTree, another(s), last) }, taken, 2},
		"nothing":                    {func(shelf) string { return last }, taken, 0},
		"no descendant":              {another, engi.Conflict, 0},
		"a parent that is not there": {func(s shelf) string { return s.commit(oldTree, last, absent) }, engi.Invalid, 0},
		"a parent that is a tree":    {func(s shelf) string { return s.commit(oldTree, last, oldTree) }, engi.Invalid, 0},
		"a tree that is not there":   {func(s shelf) string { return s.commit(absent, last) }, engi.Invalid, 0},
		"a tree that is a blob":      {func(s shelf) string { return s.commit(oldBlob, last) }, engi.Invalid, 0},
		"a tree that is a new blob":  {func(s shelf) string { return s.commit(s.put(repo.Blob, "x"), last) }, engi.Invalid, 0},
		"a blob that is not there":   {tree(func(s shelf) string { return s.entry("100644", "f", absent) }), engi.Invalid, 0},
		"a blob that is a tree":      {tree(func(s shelf) string { return s.entry("100644", "f", oldTree) }), engi.Invalid, 0},
		"a blob that is a commit":    {tree(func(s shelf) string { return s.entry("100644", "f", last) }), engi.Invalid, 0},
		"a head that is a tag":       {func(s shelf) string { return s.put("tag", "object "+last+"\n") }, engi.Invalid, 0},
		"a head that is not there":   {func(shelf) string { return absent }, engi.Invalid, 0},
		"a link":                     {tree(func(s shelf) string { return s.entry("120000", "f", oldBlob) }), engi.Invalid, 0},
		"a submodule":                {tree(func(s shelf) string { return s.entry("160000", "f", last) }), engi.Invalid, 0},
		"a directory of git":         {tree(func(s shelf) string { return s.entry("40000", ".Git", oldTree) }), engi.Invalid, 0},
		"one for NTFS":               {tree(func(s shelf) string { return s.entry("40000", "git~1", oldTree) }), engi.Invalid, 0},
		"one with a stream":          {tree(func(s shelf) string { return s.entry("40000", ".git::$INDEX_ALLOCATION", oldTree) }), engi.Invalid, 0},
		"one for HFS+":               {tree(func(s shelf) string { return s.entry("40000", ".g\u200cit", oldTree) }), engi.Invalid, 0},
		"a name that leads up":       {tree(func(s shelf) string { return s.entry("40000", "..", oldTree) }), engi.Invalid, 0},
		"a name with a slash":        {tree(func(s shelf) string { return s.entry("100644", "a/b", oldBlob) }), engi.Invalid, 0},
		"no name":                    {tree(func(s shelf) string { return s.entry("100644", "", oldBlob) }), engi.Invalid, 0},
		"a mode that is none":        {tree(func(s shelf) string { return s.entry("100600", "f", oldBlob) }), engi.Invalid, 0},
		"a mode with a zero":         {tree(func(s shelf) string { return s.entry("040000", "f", oldTree) }), engi.Invalid, 0},
		"an order that is not git's": {tree(func(s shelf) string { return s.entry("40000", "a", oldTree) + s.entry("100644", "a.b", oldBlob) }), engi.Invalid, 0},
		"a name twice":               {tree(func(s shelf) string { return s.entry("100644", "a", oldBlob) + s.entry("100644", "a", oldBlob) }), engi.Invalid, 0},
		"a file and a directory": {tree(func(s shelf) string {
			return s.entry("100644", "a", oldBlob) + s.entry("100644", "a.b", oldBlob) + s.entry("40000", "a", oldTree)
		}), engi.Invalid, 0},
		"an entry that is cut off":   {tree(func(s shelf) string { return s.entry("100644", "a", oldBlob)[:20] }), engi.Invalid, 0},
		"a commit of no words":       {func(s shelf) string { return s.put(repo.Commit, "") }, engi.Invalid, 0},
		"a commit without an author": {func(s shelf) string { return s.put(repo.Commit, "tree "+oldTree+"\nparent "+last+"\n\nm") }, engi.Invalid, 0},
		"a commit with parents at last": {func(s shelf) string {
			return s.put(repo.Commit, "tree "+oldTree+"\nauthor a\nparent "+last+"\ncommitter a\n\nm")
		}, engi.Invalid, 0},
		"a fault far behind": {func(s shelf) string {
			c := s.commit(s.put(repo.Tree, s.entry("120000", "f", oldBlob)), last)
			return s.commit(oldTree, s.commit(oldTree, c))
		}, engi.Invalid, 0},
	} {
		s := shelf{t, transfer.Pack{}}
		a, err := s.p.Added(t.Context(), last, c.make(s), known)
		switch {
		case c.want == taken && (err != nil || len(a.Objects) != c.new):
			t.Errorf("%s: %d objects, %v", name, len(a.Objects), err)
		case c.want != taken && (!engi.Is(err, c.want) || engi.RemedyOf(err) == ""):
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestPushRequests reads requests of clients before the pack.
func TestPushRequests(t *testing.T) {
	one, two, zero := strings.Repeat("1", 40), strings.Repeat("2", 40), strings.Repeat("0", 40)
	packet := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	in := strings.NewReader(packet("shallow "+one) + packet(one+" "+two+" refs/heads/main\x00 report-status side-band-64k agent=git/2") + packet(zero+" "+one+" refs/heads/a b") + "0000PACK")
	p, err := transfer.ReadPush(in)
	if rest, _ := io.ReadAll(in); err != nil || string(rest) != "PACK" {
		t.Fatalf("%q is left, %v", rest, err)
	}
	if u, ok := p.Of("refs/heads/main"); !ok || u != (transfer.Update{Name: "refs/heads/main", Old: one, New: two}) {
		t.Errorf("%+v", u)
	}
	if u, ok := p.Of("refs/heads/a b"); !ok || u.Old != "" || u.New != one {
		t.Errorf("%+v", u)
	}
	var b bytes.Buffer
	if err := p.Report(&b, func(u transfer.Update) error {
		if u.Name == "refs/heads/main" {
			return nil
		}
		return engi.Errorf(engi.Internal, "the password is x\nok refs/heads/main").WithRemedy("wait\nok")
	}); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Contains(got, "password") || strings.Count(got, "ok refs/heads/main\n") != 1 || !strings.Contains(got, "\x02wait ok\n") {
		t.Errorf("%q", got)
	}
	if p, err := transfer.ReadPush(strings.NewReader("0000")); err != nil || p.Report(nil, nil) != nil { // the client asks whether it may push
		t.Error(err)
	}
	for name, text := range map[string]string{
		"nothing": "", "no end": packet(zero + " " + one + " a"), "no hash": packet("x "+one+" a") + "0000", "no name": packet(zero+" "+one) + "0000",
		"twice": packet(zero+" "+one+" a") + packet(zero+" "+one+" a") + "0000", "late": packet(zero+" "+one+" a") + packet("shallow "+one) + "0000", "no packet": "zzzz", "two lines": packet(zero+" "+one+" a\nok b") + "0000", "a long name": packet(zero+" "+one+" "+strings.Repeat("a", 1000)) + "0000",
	} {
		if _, err := transfer.ReadPush(strings.NewReader(text)); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzReadPush(f *testing.F) {
	one, zero := strings.Repeat("1", 40), strings.Repeat("0", 40)
	packet := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	f.Add(packet("shallow "+one) + packet(zero+" "+one+" refs/heads/main\x00 report-status side-band-64k") + "0000")
	f.Add("0000")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := transfer.ReadPush(strings.NewReader(s))
		if err != nil {
			if !engi.Is(err, engi.Invalid) {
				t.Error(err)
			}
			return
		}
		if err := p.Report(io.Discard, func(u transfer.Update) error {
			return engi.Errorf(engi.Invalid, "no %s", u.Name).WithRemedy("%s", u.Name)
		}); err != nil {
			t.Error(err)
		}
	})
}

// FuzzUnpack unpacks arbitrary packs with a correct checksum, and adds their objects.
func FuzzUnpack(f *testing.F) {
	whole := newPacker(4)
	blob := whole.entry(3, 10, "", []byte("0123456789"))
	d := delta(10, 5, 0x91, 2, 3, 2, 'x', 'y')
	whole.entry(6, len(d), string([]byte{byte(whole.Len() - blob)}), d)
	raw, _ := hex.DecodeString(repo.HashOf(repo.Blob, []byte("234xy"))) // a valid object
	tree := "100644 a\x00" + string(raw)
	whole.entry(2, len(tree), "", []byte(tree))
	commit := "tree " + repo.HashOf(repo.Tree, []byte(tree)) + "\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nm\n"
	whole.entry(1, len(commit), "", []byte(commit))
	f.Add(whole.Bytes())
	f.Add(newPacker(0).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		sum := sha1.Sum(data)
		none := func(context.Context, string) (repo.Object, error) {
			return repo.Object{}, engi.Errorf(engi.NotFound, "there is no such object")
		}
		p, err := transfer.Unpack(t.Context(), bytes.NewReader(append(slices.Clone(data), sum[:]...)), none, func(int64) error { return nil })
		if err != nil {
			if !engi.Is(err, engi.Invalid, engi.Exhausted) {
				t.Error(err)
			}
			return
		}
		known := func(context.Context, repo.Kind, []string) (map[string]int64, error) { return nil, nil }
		for hash, o := range p {
			if o.Kind != repo.Commit {
				continue
			}
			if _, err := p.Added(t.Context(), "", hash, known); err != nil {
				if !engi.Is(err, engi.Invalid) {
					t.Error(err)
				}
				continue
			}
			if _, err := repo.Read(t.Context(), p.Before(none), hash, func(string) error { return nil }); err != nil && !engi.Is(err, engi.Invalid, engi.Exhausted) {
				t.Error(err)
			}
		}
	})
}
