package repo

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/engi-dev/engi/internal/engi"
)

// An Entry is the entry of a file or a directory in a tree.
type Entry struct {
	Name string
	Mode filemode.FileMode
	Hash string
}

// Kind returns the kind of the object that an entry names. A submodule names a commit.
func (e Entry) Kind() Kind {
	switch e.Mode {
	case filemode.Dir:
		return Tree
	case filemode.Submodule:
		return Commit
	}
	return Blob
}

// Link reports whether an entry is a link or a submodule, which workspaces do not have.
func (e Entry) Link() bool { return e.Mode == filemode.Symlink || e.Mode == filemode.Submodule }

// modes maps the modes in git's text form. Early versions of git wrote 100664.
var modes = map[string]filemode.FileMode{
	"40000": filemode.Dir, "100644": filemode.Regular, "100664": filemode.Deprecated, "100755": filemode.Executable, "120000": filemode.Symlink, "160000": filemode.Submodule,
}

// Entries parses a tree. It reports errors that git's fsck also reports: names that
// lead elsewhere or are reserved by git, unknown modes, an order other than git's, and duplicate
// names.
func Entries(tree []byte) (all []Entry, err error) {
	names := map[string]bool{}
	last := ""
	for len(tree) > 0 {
		head, rest, ok := bytes.Cut(tree, []byte{0})
		mode, name, cut := strings.Cut(string(head), " ")
		m, known := modes[mode]
		switch {
		case !ok || !cut || len(rest) < 20:
			return nil, fmt.Errorf("an entry is cut off")
		case !known:
			return nil, fmt.Errorf("%.100q has the mode %.20q", name, mode)
		case name == "" || name == "." || name == ".." || strings.Contains(name, "/") || IsGit(name):
			return nil, fmt.Errorf("%.100q is no name of a file", name)
		case names[name]:
			return nil, fmt.Errorf("%.100q is listed twice", name)
		}
		order := name
		if m == filemode.Dir {
			order += "/" // git sorts directories with a slash
		}
		if order <= last {
			return nil, fmt.Errorf("%.100q is not where git has it", name)
		}
		all = append(all, Entry{name, m, hex.EncodeToString(rest[:20])})
		names[name], last, tree = true, order, rest[20:]
	}
	return all, nil
}

// IsGit reports whether some file system takes a name for git's own directory;
// git refuses to check out such names.
func IsGit(name string) bool {
	if i := strings.IndexAny(name, `:\`); i >= 0 { // NTFS has alternate streams of files
		name = name[:i]
	}
	name = strings.ToLower(strings.Map(func(r rune) rune {
		switch { // HFS+ ignores these characters
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, name))
	name = strings.TrimRight(name, " .")
	return name == ".git" || name == "git~1"
}

// A CommitInfo is a parsed commit.
type CommitInfo struct {
	Tree    string
	Parents []string
	Message string
}

// ParseCommit parses a commit.
func ParseCommit(content []byte) (c CommitInfo, err error) {
	head, message, _ := bytes.Cut(content, []byte("\n\n"))
	c.Message = string(message)
	if bytes.IndexByte(head, 0) >= 0 {
		return c, fmt.Errorf("it has a zero byte before its message")
	}
	want := "tree"
	for line := range strings.Lines(string(head)) {
		word, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case word == want && want == "tree" && IsHash(value):
			c.Tree, want = value, "author"
		case word == "parent" && want == "author" && IsHash(value):
			c.Parents = append(c.Parents, value)
		case word == want && want == "author":
			want = "committer"
		case word == want && want == "committer":
			return c, nil // the rest of the commit is ignored
		default:
			return c, fmt.Errorf("it has %.60q where its %s should be", line, want)
		}
	}
	return c, fmt.Errorf("it has no %s", want)
}

// IsHash reports whether s is a hash.
func IsHash(s string) bool { return len(s) == 40 && strings.Trim(s, "0123456789abcdef") == "" }

// load returns the content of an object of a kind.
func load(ctx context.Context, source Source, kind Kind, hash string) ([]byte, error) {
	o, err := source(ctx, hash)
	if err != nil {
		return nil, err
	}
	if o.Kind != kind {
		return nil, o.damaged("it is no " + string(kind))
	}
	return o.Content()
}

func commitOf(ctx context.Context, source Source, hash string) (c CommitInfo, err error) {
	content, err := load(ctx, source, Commit, hash)
	if err != nil {
		return c, err
	}
	if c, err = ParseCommit(content); err != nil {
		err = engi.Errorf(engi.Invalid, "the commit %s: %v", hash, err)
	}
	return c, err
}

// TreeOf returns the hash of the tree of a commit, which two commits share if they have the same files.
func TreeOf(ctx context.Context, source Source, commit string) (string, error) {
	c, err := commitOf(ctx, source, commit)
	return c.Tree, err
}

func entriesOf(ctx context.Context, source Source, hash string) ([]Entry, error) {
	content, err := load(ctx, source, Tree, hash)
	if err != nil {
		return nil, err
	}
	all, err := Entries(content)
	if err != nil {
		err = engi.Errorf(engi.Invalid, "the tree %s: %v", hash, err)
	}
	return all, err
}
