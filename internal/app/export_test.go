package app

import (
	"context"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/patch"
)

// A WorkingCopy reads the files of an app in a sandbox.
type WorkingCopy struct{ c workingCopy }

func (w *WorkingCopy) Read(ctx context.Context, g engi.Guest, dir string) (map[string]File, error) {
	t, _, err := w.c.read(ctx, g, dir)
	return t, err
}

func (w *WorkingCopy) Ratio() (float64, int) { return w.c.ratio() }

// GitCommit returns the commit of a revision and all objects of its files, by ID.
func GitCommit(r engi.Revision, parent string, files map[string]string) (id string, packed map[string][]byte, err error) {
	t, packed := tree{}, map[string][]byte{}
	for p, text := range files {
		t[p] = describe(p, []byte(text), fileMode)
	}
	all := trees(t.sorted())
	for _, text := range files {
		all = append(all, object{"blob", []byte(text)})
	}
	c := commitOf(r, parent, t.sorted())
	for _, o := range append(all, c) {
		if packed[o.id()], err = o.packed(); err != nil {
			return "", nil, err
		}
	}
	return c.id(), packed, nil
}

// Diff returns the change of a file as a diff.
func Diff(old, now string) string {
	var b strings.Builder
	patch.Write(&b, engi.AppChange{Path: "f", Op: engi.FileWritten}, old, now, fileMode, fileMode)
	return b.String()
}

// Describe returns the record of a file.
func Describe(path string, content []byte) File { return describe(path, content, fileMode) }

// EndScript is the script that ends the server of an app in a workspace.
const EndScript = endScript
