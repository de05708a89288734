package tool

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/fileops"
)

type readFileArgs struct {
	Path   string `json:"path" jsonschema:"absolute"`
	Offset int    `json:"offset,omitempty" jsonschema:"first line, counted from 1; -n for the last n"`
	Limit  int    `json:"limit,omitempty" jsonschema:"lines; default: 2000"`
}

type writeFileArgs struct {
	Path    string `json:"path" jsonschema:"absolute; missing directories are created"`
	Content string `json:"content"`
}

type editFileArgs struct {
	Path  string        `json:"path" jsonschema:"absolute"`
	Edits []replacement `json:"edits" jsonschema:"applied in order, all or none"`
}

type replacement struct {
	Old string `json:"old" jsonschema:"must occur exactly once, unless all is set"`
	New string `json:"new"`
	All bool   `json:"all,omitempty"`
}

type listFilesArgs struct {
	Path  string `json:"path" jsonschema:"absolute"`
	Depth int    `json:"depth,omitempty" jsonschema:"levels; default: 1, at most 5"`
}

type globArgs struct {
	Pattern string `json:"pattern" jsonschema:"like **/*.go"`
	Dir     string `json:"dir,omitempty" jsonschema:"absolute; default: the working directory"`
}

type grepArgs struct {
	Pattern    string `json:"pattern" jsonschema:"a regular expression, matched line by line"`
	Path       string `json:"path,omitempty" jsonschema:"absolute path of a directory or file; default: the working directory"`
	Glob       string `json:"glob,omitempty" jsonschema:"search only files with such names, like *.go"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	Context    int    `json:"context,omitempty" jsonschema:"lines before and after each match, at most 50"`
}

type removeFileArgs struct {
	Path string `json:"path" jsonschema:"absolute; directories are removed with their contents"`
}

// filesTimeout is the maximum time of a call.
const filesTimeout = time.Minute

// guestTool returns a tool that works in a guest.
func guestTool[A any](s Services, repeatable bool, name, description string, do func(ctx context.Context, g engi.Guest, a A) (Result, error)) (Tool, error) {
	t, err := New(name, description, func(ctx context.Context, c *Call, a A) (Result, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, filesTimeout, engi.Errorf(engi.Expired, "it took longer than %v; request less at once", filesTimeout))
		defer cancel()
		g, release, err := s.enterGuest(ctx, c)
		if err != nil {
			return Result{}, err
		}
		defer release()
		return do(ctx, g, a)
	})
	t.Needs, t.Repeatable = NeedGuest, repeatable
	return t, err
}

func fileTools(s Services) ([]Tool, error) {
	if s.Sandboxes == nil && s.Sessions == nil {
		return nil, nil
	}
	var all []Tool
	var first error
	add := func(t Tool, err error) {
		if err != nil && first == nil {
			first = err
		}
		all = append(all, t)
	}
	add(guestTool(s, true, "read_file", "Reads a text file, with line numbers, or shows an image.", func(ctx context.Context, g engi.Guest, a readFileArgs) (Result, error) {
		f, err := fileops.Read(ctx, g, fileops.ReadRequest{Path: a.Path, Offset: a.Offset, Limit: a.Limit, Numbered: true})
		if err != nil {
			return Result{}, err
		}
		switch f.Kind {
		case fileops.Image:
			return Result{Text: fmt.Sprintf("%s, %d bytes", f.MIME, f.Size), Images: []engi.Image{{MediaType: f.MIME, Data: f.Data}}}, nil
		case fileops.Binary:
			return Result{Text: fmt.Sprintf("a binary file (%s), %d bytes", f.MIME, f.Size)}, nil
		}
		text := f.Text
		if f.Truncated {
			text += fmt.Sprintf("\n(lines %d to %d of %d)", f.First, f.Last, f.TotalLines)
		}
		if text == "" {
			text = "(empty)"
		}
		return Result{Text: text}, nil
	}))
	add(guestTool(s, true, "write_file", "Creates or overwrites a file.", func(ctx context.Context, g engi.Guest, a writeFileArgs) (Result, error) {
		w, err := fileops.Write(ctx, g, fileops.WriteRequest{Path: a.Path, Content: []byte(a.Content)})
		if err != nil {
			return Result{}, err
		}
		verb := "overwrote"
		if w.Created {
			verb = "created"
		}
		return Result{Text: fmt.Sprintf("%s %s, %d bytes", verb, w.Path, w.Size)}, nil
	}))
	add(guestTool(s, false, "edit_file", "Replaces text in a file.", func(ctx context.Context, g engi.Guest, a editFileArgs) (Result, error) {
		q := fileops.EditRequest{Path: a.Path}
		for _, e := range a.Edits {
			q.Edits = append(q.Edits, fileops.Replacement(e))
		}
		e, err := fileops.Edit(ctx, g, q)
		if err != nil {
			return Result{}, err
		}
		what := "replacements"
		if e.Replaced == 1 {
			what = "replacement"
		}
		return Result{Text: fmt.Sprintf("%d %s in %s, the first in line %d", e.Replaced, what, e.Path, e.First)}, nil
	}))
	add(guestTool(s, true, "list_files", "Lists a directory.", func(ctx context.Context, g engi.Guest, a listFilesArgs) (Result, error) {
		if a.Depth < 0 || a.Depth > 5 {
			return Result{}, engi.Errorf(engi.Invalid, "depth %d is not between 1 and 5", a.Depth)
		}
		list, err := g.List(ctx, a.Path, max(a.Depth, 1))
		if err != nil {
			return Result{}, err
		}
		var b strings.Builder
		for i, f := range list {
			if i == 1000 {
				fmt.Fprintf(&b, "(%d more)\n", len(list)-i)
				break
			}
			name := f.Path
			if f.Mode.IsDir() {
				name += "/"
			}
			fmt.Fprintf(&b, "%10d %s\n", f.Size, name)
		}
		if len(list) == 0 {
			b.WriteString("(empty)")
		}
		return Result{Text: b.String()}, nil
	}))
	add(guestTool(s, true, "glob", "Finds files by name, last modified first.", func(ctx context.Context, g engi.Guest, a globArgs) (Result, error) {
		l, err := fileops.Glob(ctx, g, fileops.GlobRequest{Pattern: a.Pattern, Dir: cmp.Or(a.Dir, workDir(ctx, g)), Limit: 200})
		if err != nil {
			return Result{}, err
		}
		var b strings.Builder
		for _, f := range l.Files {
			b.WriteString(f.Path + "\n")
		}
		fmt.Fprintf(&b, "(%d of %d)", len(l.Files), l.Total)
		return Result{Text: b.String()}, nil
	}))
	add(guestTool(s, true, "grep", "Finds matching lines in files.", func(ctx context.Context, g engi.Guest, a grepArgs) (Result, error) {
		f, err := fileops.Grep(ctx, g, fileops.GrepRequest{Pattern: a.Pattern, Path: cmp.Or(a.Path, workDir(ctx, g)), Glob: a.Glob, IgnoreCase: a.IgnoreCase, Before: a.Context, After: a.Context})
		if err != nil {
			return Result{}, err
		}
		var b strings.Builder
		for _, m := range f.Matches {
			for i, l := range m.Before {
				fmt.Fprintf(&b, "%s-%d-%s\n", m.Path, m.Line-len(m.Before)+i, l)
			}
			fmt.Fprintf(&b, "%s:%d:%s\n", m.Path, m.Line, m.Text)
			for i, l := range m.After {
				fmt.Fprintf(&b, "%s-%d-%s\n", m.Path, m.Line+1+i, l)
			}
		}
		fmt.Fprintf(&b, "(%d matches in %d files searched", len(f.Matches), f.Searched)
		if f.Truncated {
			b.WriteString("; there are more")
		}
		b.WriteString(")")
		return Result{Text: b.String()}, nil
	}))
	add(guestTool(s, true, "remove_file", "Removes a file or a directory.", func(ctx context.Context, g engi.Guest, a removeFileArgs) (Result, error) {
		if err := g.Remove(ctx, a.Path); err != nil {
			return Result{}, err
		}
		return Result{Text: "removed " + a.Path}, nil
	}))
	return all, first
}

// workDir returns the working directory of programs in a sandbox, where a search
// starts. The root directory also has the system's files, which take long to search and hide others.
func workDir(ctx context.Context, g engi.Guest) string {
	const dir = "/workspace"
	if fi, err := g.Stat(ctx, dir); err == nil && (fi.Mode.IsDir() || fi.Target != "") {
		return dir
	}
	return "/" // the template has no working directory
}

// readAll reads up to limit bytes; it reports Invalid for more.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "read: %v", err)
	}
	if int64(len(raw)) > limit {
		return nil, engi.Errorf(engi.Invalid, "more than %d bytes", limit)
	}
	return raw, nil
}
