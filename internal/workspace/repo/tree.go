package repo

import (
	"cmp"
	"context"
	"io"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/engi-dev/engi/internal/engi"
)

// MaxFiles is the maximum number of files of a revision.
const MaxFiles = engi.MaxWorkspaceFiles

// Modes of files.
const (
	FileMode    = 0o644
	ProgramMode = 0o755
)

// A File is a file of a revision.
type File struct {
	Path string
	Mode uint32
	Hash string // hash of its blob
}

// Files holds the files of a revision, by path.
type Files map[string]File

// Sorted returns the files by path.
func (fs Files) Sorted() []File {
	return slices.SortedFunc(maps.Values(fs), func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
}

// Changes returns the changes from fs to next, ordered by path, without sizes.
func (fs Files) Changes(next Files) (all []engi.AppChange) {
	for p, f := range next {
		if old, ok := fs[p]; !ok {
			all = append(all, engi.AppChange{Path: p, Op: engi.FileCreated})
		} else if old != f {
			all = append(all, engi.AppChange{Path: p, Op: engi.FileWritten})
		}
	}
	for p := range fs {
		if _, ok := next[p]; !ok {
			all = append(all, engi.AppChange{Path: p, Op: engi.FileRemoved})
		}
	}
	slices.SortFunc(all, func(a, b engi.AppChange) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// Check reports Conflict if a path is both a file and a directory.
func (fs Files) Check() error {
	for p := range fs {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			if _, ok := fs[d]; ok {
				return engi.Errorf(engi.Conflict, "%.100q cannot be a file and a directory", d).WithRemedy("remove the other file in the same revision")
			}
		}
	}
	if len(fs) > MaxFiles {
		return tooMany()
	}
	return nil
}

func tooMany() error {
	return engi.Errorf(engi.Exhausted, "there are more than %d files", MaxFiles).WithRemedy("leave out generated and downloaded files")
}

// A Version is the files of a commit, with the hashes of their directories in git.
type Version struct {
	Commit string // hash; empty for none
	Files  Files
	trees  map[string]bool // hashes
}

// Read returns the files of a commit; none for the empty hash. It refuses
// entries of other programs that are not files of a workspace: links, submodules, and paths for which
// check returns an error.
func Read(ctx context.Context, source Source, commit string, check func(path string) error) (Version, error) {
	v := Version{commit, Files{}, map[string]bool{}}
	if commit == "" {
		return v, nil
	}
	c, err := commitOf(ctx, source, commit)
	if err != nil {
		return v, err
	}
	type dir struct{ path, hash string }
	seen := 0
	for dirs := []dir{{"", c.Tree}}; len(dirs) > 0; dirs = dirs[1:] {
		if seen++; seen > 4*MaxFiles {
			return v, engi.Errorf(engi.Exhausted, "there are more than %d directories", 4*MaxFiles).WithRemedy("leave out generated and downloaded files")
		}
		entries, err := entriesOf(ctx, source, dirs[0].hash)
		if err != nil {
			return v, err
		}
		v.trees[dirs[0].hash] = true
		for _, e := range entries {
			f := File{Path: path.Join(dirs[0].path, e.Name), Hash: e.Hash}
			if err := check(f.Path); err != nil {
				return v, err
			}
			switch e.Mode {
			case filemode.Dir:
				dirs = append(dirs, dir{f.Path, f.Hash})
				continue
			case filemode.Executable:
				f.Mode = ProgramMode
			case filemode.Regular, filemode.Deprecated:
				f.Mode = FileMode
			default:
				return v, NoFile(f.Path)
			}
			if v.Files[f.Path] = f; len(v.Files) > MaxFiles {
				return v, tooMany()
			}
		}
	}
	return v, nil
}

// NoFile returns the error for a link or a submodule.
func NoFile(path string) error {
	return engi.Errorf(engi.Invalid, "%.100q is a link or a submodule, which workspaces do not have", path).WithRemedy("commit a file instead")
}

// encode returns the object that f encodes.
func encode(kind Kind, f func(plumbing.EncodedObject) error) (Object, error) {
	var m plumbing.MemoryObject
	if err := f(&m); err != nil {
		return Object{}, engi.Errorf(engi.Internal, "encode a %s of git: %v", kind, err)
	}
	r, err := m.Reader()
	if err != nil {
		return Object{}, engi.Errorf(engi.Internal, "encode a %s of git: %v", kind, err)
	}
	defer r.Close()
	content := make([]byte, m.Size())
	if _, err := io.ReadFull(r, content); err != nil {
		return Object{}, engi.Errorf(engi.Internal, "encode a %s of git: %v", kind, err)
	}
	return New(kind, content)
}

// A Note is the metadata of a commit.
type Note struct {
	Message string
	Actor   string
	Time    time.Time
}

// Next returns the commit after v with the given files, and the objects that v does not have,
// without those of the files.
func (v Version) Next(files Files, n Note) (next Version, objects []Object, err error) {
	next = Version{Files: files, trees: map[string]bool{}}
	dirs := map[string][]object.TreeEntry{".": nil}
	for _, f := range files {
		d := path.Dir(f.Path)
		for up := d; up != "."; up = path.Dir(up) {
			if _, ok := dirs[up]; ok {
				break
			}
			dirs[up] = nil
		}
		mode := filemode.Regular
		if f.Mode == ProgramMode {
			mode = filemode.Executable
		}
		dirs[d] = append(dirs[d], object.TreeEntry{Name: path.Base(f.Path), Mode: mode, Hash: plumbing.NewHash(f.Hash)})
	}
	// The deepest directories come first and the root last, because a directory contains the hashes of
	// its subdirectories.
	names := slices.SortedFunc(maps.Keys(dirs), func(a, b string) int { return cmp.Or(cmp.Compare(depth(b), depth(a)), cmp.Compare(a, b)) })
	var root string
	for _, d := range names {
		sort.Sort(object.TreeEntrySorter(dirs[d]))
		t := object.Tree{Entries: dirs[d]}
		o, err := encode(Tree, t.Encode)
		if err != nil {
			return next, nil, err
		}
		if !v.trees[o.Hash] && !next.trees[o.Hash] {
			objects = append(objects, o)
		}
		next.trees[o.Hash] = true
		root = o.Hash
		if d != "." {
			up := path.Dir(d)
			dirs[up] = append(dirs[up], object.TreeEntry{Name: path.Base(d), Mode: filemode.Dir, Hash: plumbing.NewHash(o.Hash)})
		}
	}
	who := object.Signature{Name: cmp.Or(nameOf(n.Actor), "engi"), Email: "workspace@engi.invalid", When: n.Time.UTC()}
	c := object.Commit{Author: who, Committer: who, Message: n.Message + "\n", TreeHash: plumbing.NewHash(root)}
	if v.Commit != "" {
		c.ParentHashes = []plumbing.Hash{plumbing.NewHash(v.Commit)}
	}
	o, err := encode(Commit, c.Encode)
	if err != nil {
		return next, nil, err
	}
	next.Commit = o.Hash
	return next, append(objects, o), nil
}

func depth(d string) int {
	if d == "." {
		return 0
	}
	return 1 + strings.Count(d, "/")
}

// nameOf converts the name of an actor to a valid name in a commit.
func nameOf(actor string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune("<>\x7f", r) {
			return -1
		}
		return r
	}, actor), " .,:;'\"")
}

// Find returns a file of a commit, or NotFound.
func Find(ctx context.Context, source Source, commit, name string) (f File, err error) {
	missing := engi.Errorf(engi.NotFound, "there is no file %.100q", name)
	c, err := commitOf(ctx, source, commit)
	if err != nil {
		return f, err
	}
	hash, parts := c.Tree, strings.Split(name, "/")
	for i, part := range parts {
		entries, err := entriesOf(ctx, source, hash)
		if err != nil {
			return f, err
		}
		at := slices.IndexFunc(entries, func(e Entry) bool { return e.Name == part })
		if at < 0 || (entries[at].Mode == filemode.Dir) != (i < len(parts)-1) {
			return f, missing
		}
		hash = entries[at].Hash
		if f = (File{name, FileMode, hash}); entries[at].Mode == filemode.Executable {
			f.Mode = ProgramMode
		}
	}
	return f, nil
}
