// Package patch computes the differences of texts, line by line. It does not apply patches.
//
// The cost is O(n log n) in the number of lines for all texts, because
// texts are not trusted. Therefore the difference is not always the smallest one.
package patch

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/engi-dev/engi/internal/engi"
)

// Write writes the change of a file in git's format. The modes are permission bits, 0 for a
// file that does not exist.
func Write(b *strings.Builder, c engi.AppChange, old, now string, oldMode, nowMode fs.FileMode) {
	oldMode, nowMode = oldMode.Perm(), nowMode.Perm()
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
	_, hunks, _ := bytes.Cut(diff.Diff(from, []byte(old), to, []byte(now)), []byte("\n")) // without the first line, which differs in git's format
	b.Write(hunks)
}

// Lines returns the lines of a text without line ends.
func Lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// Kept returns for each line of now the number of the same line in old, counted from 0, or
// -1 if the line is new.
func Kept(old, now string) []int {
	n := len(Lines(now))
	kept := make([]int, 0, n)
	at := 0 // next line of old
	same := func(upTo int) {
		for len(kept) < min(upTo, n) {
			kept = append(kept, at)
			at++
		}
	}
	if old != now {
		text := string(diff.Diff("a", []byte(old), "b", []byte(now)))
		_, hunks, _ := strings.Cut(text, "\n+++ b\n")
		for len(hunks) > 0 {
			var line string
			line, hunks, _ = strings.Cut(hunks, "\n")
			switch {
			case strings.HasPrefix(line, "@@"):
				var a, b, c, d int
				if _, err := fmt.Sscanf(line, "@@ -%d,%d +%d,%d @@", &a, &b, &c, &d); err != nil {
					panic(err) // unreachable: the library always writes all four numbers
				}
				if d == 0 {
					c++ // without lines, the number is that of the line before
				}
				same(c - 1)
			case strings.HasPrefix(line, "-"):
				at++
			case strings.HasPrefix(line, "+"):
				kept = append(kept, -1)
			case strings.HasPrefix(line, " "):
				same(len(kept) + 1)
			}
		}
	}
	same(n)
	return kept
}
