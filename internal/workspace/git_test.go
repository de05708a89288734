package workspace_test

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/internal/workspace/repo"
	"github.com/engi-dev/engi/internal/workspace/transfer"
)

// A clone is a client's copy of a workspace's repository.
type clone struct {
	objects transfer.Pack
	last    repo.Version
}

func (c *clone) source(_ context.Context, hash string) (repo.Object, error) {
	o, ok := c.objects[hash]
	if !ok {
		return o, engi.Errorf(engi.NotFound, "there is no object %s", hash)
	}
	return o, nil
}

// cloned fetches the whole history of a workspace.
func cloned(ctx context.Context, s *workspace.Service, viewer engi.Viewer, name string) (*clone, error) {
	c := &clone{objects: transfer.Pack{}, last: repo.Version{Files: repo.Files{}}}
	all, err := s.Revisions(ctx, viewer, name, engi.Paging{Limit: 1})
	if err != nil || len(all) == 0 {
		return c, err
	}
	var b bytes.Buffer
	if err := s.GitFetch(ctx, viewer, name, strings.NewReader("0032want "+all[0].Commit+"\n00000009done\n"), &b); err != nil {
		return nil, err
	}
	pack, ok := bytes.CutPrefix(b.Bytes(), []byte("0008NAK\n"))
	if !ok {
		return nil, fmt.Errorf("%.100q is no pack", b.Bytes())
	}
	if c.objects, err = transfer.Unpack(ctx, bytes.NewReader(pack), c.source, func(int64) error { return nil }); err != nil {
		return nil, err
	}
	c.last, err = repo.Read(ctx, c.source, all[0].Commit, workspace.CheckPath)
	return c, err
}

// commit makes a commit of changed files; a content of "-" removes the file.
func (c *clone) commit(t *testing.T, message string, changed map[string]string) (objects []repo.Object) {
	t.Helper()
	files := maps.Clone(c.last.Files)
	for p, text := range changed {
		if text == "-" {
			delete(files, p)
			continue
		}
		o := must[repo.Object](t)(repo.New(repo.Blob, []byte(text)))
		objects = append(objects, o)
		files[p] = repo.File{Path: p, Mode: repo.FileMode, Hash: o.Hash}
	}
	next, made, err := c.last.Next(files, repo.Note{Message: message, Actor: "somebody else", Time: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	c.last = next
	return append(objects, made...)
}

// packed returns a pack of objects.
func packed(objects []repo.Object) []byte {
	b := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(objects)))
	for _, o := range objects {
		head := binary.AppendUvarint(nil, uint64(o.Size>>4))
		c := map[repo.Kind]byte{repo.Commit: 1, repo.Tree: 2, repo.Blob: 3}[o.Kind]<<4 | byte(o.Size&15)
		if o.Size < 16 {
			head = nil
		} else {
			c |= 0x80
		}
		b = append(append(append(b, c), head...), o.Packed...)
	}
	sum := sha1.Sum(b)
	return append(b, sum[:]...)
}

// push moves main from a commit to the last commit of the clone. It returns the server's report
// about main.
func (c *clone) push(ctx context.Context, s *workspace.Service, viewer engi.Viewer, name, from string, objects []repo.Object) (string, error) {
	if from == "" {
		from = strings.Repeat("0", 40)
	}
	line := from + " " + c.last.Commit + " refs/heads/main\x00report-status"
	request := fmt.Sprintf("%04x%s0000%s", len(line)+4, line, packed(objects))
	var b bytes.Buffer
	err := s.GitPush(ctx, viewer, name, strings.NewReader(request), &b)
	_, text, _ := strings.Cut(b.String(), "unpack ok\n")
	return strings.TrimSuffix(strings.TrimSpace(text), "\n0000"), err
}

// pushes pushes changes after fetching those of others.
func pushes(ctx context.Context, t *testing.T, s *workspace.Service, message string, changed ...map[string]string) error {
	t.Helper()
	for try := 0; ; try++ {
		c, err := cloned(ctx, s, "a", "x")
		if err != nil {
			return err
		}
		from, objects := c.last.Commit, []repo.Object(nil)
		for _, files := range changed {
			objects = append(objects, c.commit(t, message, files)...)
		}
		said, err := c.push(ctx, s, "a", "x", from, objects)
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(said, "ok refs/heads/main"):
			return nil
		case try == 1 || !strings.Contains(said, "there is another revision"):
			return engi.Errorf(engi.Unavailable, "push: %s", said)
		}
	}
}

func TestPush(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	ctx := engi.WithActor(t.Context(), "key k")
	x := must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x"}))

	// The first push to an empty workspace, and two commits at once.
	if err := pushes(ctx, t, s, "Begin\n\nwith much", map[string]string{"a": "1\n", "d/b": "1\n"}); err != nil {
		t.Fatal(err)
	}
	x = must[engi.Workspace](t)(s.Start(ctx, "a", "x"))
	same(t, "sandbox", map[string]string{"a": "1\n", "d/b": "1\n"}, w.has(x.Sandbox))
	if err := pushes(ctx, t, s, "Go on", map[string]string{"a": "1\n2\n", "c": "-"}, map[string]string{"a": "1\n2\n3\n", "d/b": "-"}); err != nil {
		t.Fatal(err)
	}
	same(t, "sandbox", map[string]string{"a": "1\n2\n3\n"}, w.has(x.Sandbox))
	revisions := must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{}))
	if len(revisions) != 2 || revisions[0].Message != "Go on" || revisions[0].Actor != "key k" || revisions[0].Parent != 1 || revisions[1].Message != "Begin\n\nwith much" {
		t.Errorf("%+v", revisions)
	}
	same(t, "changed", []engi.AppChange{{Path: "a", Op: engi.FileWritten, Size: 6}, {Path: "d/b", Op: engi.FileRemoved}}, revisions[0].Changed)
	c, err := cloned(ctx, s, "a", "x")
	if err != nil || c.last.Commit != revisions[0].Commit {
		t.Fatal(err)
	}
	commits := 0
	for _, o := range c.objects {
		if o.Kind == repo.Commit {
			commits++
		}
	}
	if commits != 3 {
		t.Errorf("there are %d commits, want 3", commits)
	}
	var by []int64
	for _, l := range must[[]engi.BlameLine](t)(s.Blame(ctx, "a", "x", "a", 0)) {
		by = append(by, l.Revision)
	}
	same(t, "blame", []int64{1, 2, 2}, by)

	// Changes made in the sandbox are recorded first, and are not lost.
	w.in(x.Sandbox, func(b *fakeSandbox) { b.put("/workspace/mine", "mine", 0o644) })
	from, objects := c.last.Commit, c.commit(t, "Late", map[string]string{"a": "4\n"})
	if said, err := c.push(ctx, s, "a", "x", from, objects); err != nil || !strings.HasPrefix(said, "0") || !strings.Contains(said, "ng refs/heads/main") || !strings.Contains(said, "there is another revision, 3") {
		t.Errorf("%q, %v", said, err)
	}
	if err := pushes(ctx, t, s, "Late", map[string]string{"a": "4\n"}); err != nil {
		t.Fatal(err)
	}
	same(t, "sandbox", map[string]string{"a": "4\n", "mine": "mine"}, w.has(x.Sandbox))

	// A commit without changes is also a revision, because other commits can refer to it.
	if err := pushes(ctx, t, s, "", map[string]string{}); err != nil {
		t.Fatal(err)
	}
	if last := must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{Limit: 1}))[0]; last.Number != 5 || last.Message != "Change no files" || len(last.Changed) > 0 {
		t.Errorf("%+v", last)
	}

	for what, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"what is installed":      {map[string]string{"node_modules/x/index.js": "x"}, "of what is made or installed"},
		"a backslash":            {map[string]string{`a\b`: "x"}, "has a backslash"},
		"a path that is deep":    {map[string]string{strings.Repeat("z/", 40) + "z": "x"}, "too deep"},
		"more files than may be": {many(10_001), "more than 10000 files"},
		"more bytes than may be": {map[string]string{"1": blank(16 << 20), "2": blank(16<<20 - 1), "3": blank(16<<20 - 2), "4": blank(16<<20 - 3), "5": blank(16<<20 - 4), "6": blank(16<<20 - 5), "7": blank(16<<20 - 6), "8": blank(16<<20 - 7),
			"9": blank(16<<20 - 8), "10": blank(16<<20 - 9), "11": blank(16<<20 - 10), "12": blank(16<<20 - 11), "13": blank(16<<20 - 12), "14": blank(16<<20 - 13), "15": blank(16<<20 - 14), "16": blank(16<<20 - 15), "17": blank(16<<20 - 16)}, "the limit is 256 MiB"},
	} {
		if err := pushes(ctx, t, s, what, c.files); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, line := range map[string]string{
		"main stays":     revisions[0].Commit + " " + strings.Repeat("0", 40) + " refs/heads/main\x00report-status",
		"other branches": strings.Repeat("0", 40) + " " + revisions[0].Commit + " refs/heads/other\x00report-status",
	} {
		var b bytes.Buffer
		err := s.GitPush(ctx, "a", "x", io.MultiReader(strings.NewReader(fmt.Sprintf("%04x%s0000", len(line)+4, line)), bytes.NewReader(packed(nil))), &b)
		if err != nil || !strings.Contains(b.String(), "ng refs/heads/") {
			t.Errorf("%s: %q, %v", what, b.String(), err)
		}
	}
	if err := s.GitPush(ctx, "a", "x", strings.NewReader("nonsense"), io.Discard); !engi.Is(err, engi.Invalid) {
		t.Error(err)
	}
	if last := must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{Limit: 1}))[0]; last.Number != 5 {
		t.Errorf("what was refused is revision %d", last.Number)
	}
}

func blank(n int) string { return strings.Repeat("x", n) }

func many(n int) map[string]string {
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprint("f", i)] = ""
	}
	return files
}

// TestPushesAtOnce pushes concurrently: each push is accepted, or must be based on another one first.
func TestPushesAtOnce(t *testing.T) {
	s, _ := newFixture(t).begin(t)
	ctx := t.Context()
	must[engi.Workspace](t)(s.Create(ctx, engi.WorkspaceSpec{Owner: "a", Name: "x", Files: []engi.WorkspaceFile{file("a", "1")}}))
	c, err := cloned(ctx, s, "a", "x")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 20)
	for i := range cap(said) {
		mine := &clone{c.objects, c.last}
		objects := mine.commit(t, fmt.Sprint(i), map[string]string{"a": fmt.Sprint("by ", i)})
		go func() {
			text, err := mine.push(ctx, s, "a", "x", c.last.Commit, objects)
			if err != nil {
				text = err.Error()
			}
			said <- text
		}()
	}
	taken := 0
	for range cap(said) {
		switch text := <-said; {
		case strings.HasSuffix(text, "ok refs/heads/main"):
			taken++
		case !strings.Contains(text, "there is another revision, 2"):
			t.Error(text)
		}
	}
	if all := must[[]engi.WorkspaceRevision](t)(s.Revisions(ctx, "a", "x", engi.Paging{})); taken != 1 || len(all) != 2 {
		t.Errorf("%d were taken, there are %d revisions", taken, len(all))
	}
}
