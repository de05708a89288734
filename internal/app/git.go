package app

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/zlib"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// The git repository of an app is a projection of its revisions. Its objects are created
// here and not by git, so that they do not depend on settings in the sandbox,
// and a rebuilt sandbox has the same commits.

// An object is a git object.
type object struct {
	kind    string
	content []byte
}

func (o object) id() string { return gitID(o.kind, o.content) }

// packed returns the object in the format of git's loose object files.
func (o object) packed() ([]byte, error) {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	fmt.Fprintf(z, "%s %d\x00", o.kind, len(o.content))
	z.Write(o.content)
	if err := z.Close(); err != nil {
		return nil, engi.Errorf(engi.Internal, "pack an object of git: %v", err)
	}
	return b.Bytes(), nil
}

// trees returns the tree objects of the directories of files; the last one is the root.
func trees(files []File) (all []object) {
	type entry struct{ name, mode, id string }
	dirs := map[string][]entry{".": nil}
	for _, f := range files {
		for d := path.Dir(f.Path); d != "."; d = path.Dir(d) {
			if _, ok := dirs[d]; !ok {
				dirs[d] = nil
			}
		}
		mode := "100644"
		if f.Mode&0o111 != 0 {
			mode = "100755"
		}
		d := path.Dir(f.Path)
		dirs[d] = append(dirs[d], entry{path.Base(f.Path), mode, f.Blob})
	}
	names := make([]string, 0, len(dirs))
	for d := range dirs {
		names = append(names, d)
	}
	// The deepest directories come first; the root is the last.
	depth := func(d string) int {
		if d == "." {
			return 0
		}
		return 1 + strings.Count(d, "/")
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(depth(b)-depth(a), cmp.Compare(a, b)) })
	for _, d := range names {
		entries := dirs[d]
		// Git sorts a directory as if its name ended with a slash.
		key := func(e entry) string {
			if e.mode == "40000" {
				return e.name + "/"
			}
			return e.name
		}
		slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(key(a), key(b)) })
		var b bytes.Buffer
		for _, e := range entries {
			raw, err := hex.DecodeString(e.id)
			if err != nil {
				panic(err) // unreachable: gitID created the ID
			}
			fmt.Fprintf(&b, "%s %s\x00%s", e.mode, e.name, raw)
		}
		o := object{"tree", b.Bytes()}
		all = append(all, o)
		if d != "." {
			up := path.Dir(d)
			dirs[up] = append(dirs[up], entry{path.Base(d), "40000", o.id()})
		}
	}
	return all
}

// commitOf returns the commit of a revision, with the commit of its parent revision.
func commitOf(r engi.Revision, parent string, files []File) object {
	roots := trees(files)
	name := strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune("<>\x7f", r) {
			return -1
		}
		return r
	}, r.Actor)
	who := fmt.Sprintf("%s <app@engi.invalid> %d +0000", cmp.Or(strings.Trim(name, " .,:;'\""), "engi"), r.Created.Unix())
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", roots[len(roots)-1].id())
	if parent != "" {
		fmt.Fprintf(&b, "parent %s\n", parent)
	}
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s\n", who, who, r.Message)
	return object{"commit", b.Bytes()}
}

// gitRef is the ref of the last revision that the sandbox's repository has.
const gitRef = ".git/refs/engi/head"

// project brings the repository in a sandbox up to date. A branch with commits of
// others is not moved.
func (s *Service) project(ctx context.Context, r Record, g engi.Guest, dir string) (err error) {
	defer engi.Annotate(&err, "update the git repository of app %s", r.ID)
	if _, err := g.Stat(ctx, dir+"/.git/objects"); err != nil {
		if engi.Is(err, engi.NotFound) {
			return nil // the template has no git
		}
		return err
	}
	old := ""
	if content, err := readFile(ctx, g, dir+"/"+gitRef); err == nil {
		old = strings.TrimSpace(string(content))
	} else if !engi.Is(err, engi.NotFound) {
		return err
	}
	revisions, err := s.opt.Store.Revisions(ctx, r.ID, engi.Paging{})
	if err != nil || len(revisions) == 0 || revisions[0].Commit == old {
		return err
	}
	todo := revisions
	if i := slices.IndexFunc(revisions, func(r engi.Revision) bool { return r.Commit == old }); i >= 0 {
		todo = revisions[:i]
	}
	archive, feed := io.Pipe()
	fed := make(chan struct{})
	defer func() { archive.Close(); <-fed }()
	go func() {
		defer close(fed)
		feed.CloseWithError(s.objects(ctx, r.ID, todo, feed))
	}()
	if err := g.Unpack(ctx, dir+"/.git", archive); err != nil {
		return err
	}
	// The index is set to the last commit; files stay unchanged.
	const script = `export GIT_OPTIONAL_LOCKS=0; rm -f .git/index.lock .git/refs/engi/head.lock
git update-ref refs/engi/head "$1" || exit
head=$(git rev-parse -q --verify HEAD)
if [ "$head" = "$2" ]; then git -c core.hooksPath=/dev/null reset -q "$1"; fi`
	p, err := g.Start(ctx, engi.Command{Args: []string{"/bin/sh", "-c", script, "git", revisions[0].Commit, old}, Dir: dir, Timeout: gitTimeout})
	if err != nil {
		return err
	}
	exit, err := answer(ctx, gitTimeout+graceTime, p.Wait)
	if err == nil && exit.Code != 0 {
		err = engi.Errorf(engi.Unavailable, "git ended with %d: %s", exit.Code, outputOf(ctx, p, 1<<10))
	}
	return err
}

const gitTimeout = 30 * time.Second

// objects writes the new objects of revisions, newest first, as an
// archive for .git.
func (s *Service) objects(ctx context.Context, app engi.AppID, revisions []engi.Revision, w io.Writer) error {
	out, have := tar.NewWriter(w), map[string]bool{}
	file := func(name string, content []byte) error {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o444, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err := out.Write(content)
		return err
	}
	put := func(id string, o func() (object, error)) error {
		if have[id] {
			return nil
		}
		have[id] = true
		x, err := o()
		if err != nil {
			return err
		}
		packed, err := x.packed()
		if err != nil {
			return err
		}
		return file("objects/"+id[:2]+"/"+id[2:], packed)
	}
	cut := false
	for i, r := range slices.Backward(revisions) {
		files, err := s.opt.Store.Files(ctx, app, r.Number)
		if err != nil {
			return err
		}
		parent := ""
		if i+1 < len(revisions) {
			parent = revisions[i+1].Commit
		} else if r.Parent > 0 {
			before, err := s.opt.Store.Revision(ctx, app, r.Parent)
			if engi.Is(err, engi.NotFound) {
				// Its commit names a parent that cannot be built any more, so the history
				// starts with the next one.
				cut = true
				continue
			}
			if err != nil {
				return err
			}
			parent = before.Commit
			known, err := s.opt.Store.Files(ctx, app, r.Parent)
			if err != nil {
				return err
			}
			for _, f := range known {
				have[f.Blob] = true
			}
			for _, o := range trees(known) {
				have[o.id()] = true
			}
		}
		if cut {
			cut = false
			if err := file("shallow", []byte(r.Commit+"\n")); err != nil {
				return err
			}
		}
		for _, f := range files {
			if err := put(f.Blob, func() (object, error) {
				content, err := s.content(ctx, app, f.Digest)
				return object{"blob", content}, err
			}); err != nil {
				return err
			}
		}
		for _, o := range trees(files) {
			if err := put(o.id(), func() (object, error) { return o, nil }); err != nil {
				return err
			}
		}
		c := commitOf(r, parent, files)
		if err := put(c.id(), func() (object, error) { return c, nil }); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return engi.Errorf(engi.Internal, "write an archive: %v", err)
	}
	return nil
}
