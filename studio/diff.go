package studio

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/engi-dev/engi"
)

func modeOf(mode uint32) fs.FileMode { return fs.FileMode(mode).Perm() }

// writeDiff writes the change of a file as git does.
func writeDiff(b *strings.Builder, c engi.AppChange, old, now string, oldMode, nowMode uint32) {
	fmt.Fprintf(b, "diff --git a/%s b/%s\n", c.Path, c.Path)
	from, to := "a/"+c.Path, "b/"+c.Path
	switch {
	case c.Op == engi.FileCreated:
		fmt.Fprintf(b, "new file mode 100%o\n", nowMode)
		from = "/dev/null"
	case c.Op == engi.FileRemoved:
		fmt.Fprintf(b, "deleted file mode 100%o\n", oldMode)
		to = "/dev/null"
	case oldMode != nowMode:
		fmt.Fprintf(b, "old mode 100%o\nnew mode 100%o\n", oldMode, nowMode)
	}
	if old == now {
		return
	}
	if strings.ContainsRune(old, 0) || strings.ContainsRune(now, 0) {
		fmt.Fprintf(b, "Binary files %s and %s differ\n", from, to)
		return
	}
	_, hunks, _ := bytes.Cut(diff.Diff(from, []byte(old), to, []byte(now)), []byte("\n")) // without the command, which git says otherwise
	b.Write(hunks)
}
