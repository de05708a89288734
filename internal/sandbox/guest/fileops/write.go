package fileops

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// Absent as IfHash means that the file must not exist.
const Absent = "absent"

// A WriteRequest replaces a file, or creates it and its parents.
type WriteRequest struct {
	Path    string
	Content []byte
	Mode    fs.FileMode // mode of the file; 0 keeps the mode of an existing file, and means 0644 for a new one
	IfHash  string      // SHA-256 of the content that may be replaced, or Absent; empty means any
}

// A Written is the result of Write.
type Written struct {
	Path    string
	Created bool
	Size    int64
	SHA256  string
}

// Write writes a file. It reports Conflict if IfHash does not match, and Invalid
// for a directory and for content that is too large. An existing file keeps its
// owner; a new one belongs to the template's user.
func Write(ctx context.Context, g engi.Guest, q WriteRequest) (_ Written, err error) {
	defer engi.Annotate(&err, "write")
	name, err := cleanPath(q.Path)
	if err != nil {
		return Written{}, err
	}
	if len(q.Content) > MaxText {
		return Written{}, engi.Errorf(engi.Invalid, "%d bytes are too much", len(q.Content)).
			WithRemedy("upload files that are larger than %d MiB", MaxText>>20)
	}
	fi, err := g.Stat(ctx, name)
	created := engi.Is(err, engi.NotFound)
	switch {
	case created && q.IfHash != "" && q.IfHash != Absent:
		return Written{}, engi.Errorf(engi.Conflict, "%s does not exist any more", name).WithRemedy("look at the current files")
	case created:
	case err != nil:
		return Written{}, err
	case fi.Mode.IsDir():
		return Written{}, engi.Errorf(engi.Invalid, "%s is a directory", name)
	case q.IfHash == Absent:
		return Written{}, engi.Errorf(engi.Conflict, "%s exists already", name).WithRemedy("read it first, or edit it")
	case q.IfHash != "":
		raw, err := readAll(ctx, g, name, MaxText)
		if err != nil {
			return Written{}, err
		}
		if err := checkHash(name, raw, q.IfHash); err != nil {
			return Written{}, err
		}
	}
	o := engi.WriteOptions{Mode: q.Mode}
	if !created {
		o.User = fi.Owner
	}
	if err := g.Write(ctx, name, bytes.NewReader(q.Content), o); err != nil {
		return Written{}, err
	}
	return Written{Path: name, Created: created, Size: int64(len(q.Content)), SHA256: digest(q.Content)}, nil
}

func checkHash(name string, raw []byte, want string) error {
	if got := digest(raw); !strings.EqualFold(got, want) {
		return engi.Errorf(engi.Conflict, "%s has changed: its SHA-256 is %s", name, got).WithRemedy("read the file again")
	}
	return nil
}

// A Replacement replaces Old by New.
type Replacement struct {
	Old, New string
	All      bool // every occurrence is replaced; otherwise there must be exactly one
}

// An EditRequest changes parts of a text file. Each edit applies to the result of
// the edits before it. Either all edits are made or none.
type EditRequest struct {
	Path   string
	Edits  []Replacement
	IfHash string // SHA-256 of the content that may be edited; empty means any
}

// An Edited is the result of Edit.
type Edited struct {
	Path     string
	Replaced int // number of replaced occurrences
	Size     int64
	SHA256   string
	First    int // number of the first changed line
}

const maxEdits = 100

// Edit edits a file. It reports Conflict if an Old text does not occur or
// occurs more than once, or if IfHash does not match, and Invalid for a file
// that is not text. Line endings are kept: in a file with CRLF, a newline in Old
// and New means CRLF. A write at the same time may be lost; IfHash only detects
// earlier ones.
func Edit(ctx context.Context, g engi.Guest, q EditRequest) (_ Edited, err error) {
	defer engi.Annotate(&err, "edit")
	name, err := cleanPath(q.Path)
	if err != nil {
		return Edited{}, err
	}
	if len(q.Edits) == 0 || len(q.Edits) > maxEdits {
		return Edited{}, engi.Errorf(engi.Invalid, "there are %d edits, not 1 to %d", len(q.Edits), maxEdits)
	}
	fi, err := g.Stat(ctx, name)
	if err != nil {
		return Edited{}, err
	}
	if fi.Mode.IsDir() {
		return Edited{}, engi.Errorf(engi.Invalid, "%s is a directory", name)
	}
	raw, err := readAll(ctx, g, name, MaxText)
	if err != nil {
		return Edited{}, err
	}
	if isBinary(raw) {
		return Edited{}, engi.Errorf(engi.Invalid, "%s is not text", name).WithRemedy("write it as a whole")
	}
	if q.IfHash != "" {
		if err := checkHash(name, raw, q.IfHash); err != nil {
			return Edited{}, err
		}
	}
	text, n, err := apply(string(raw), q.Edits)
	if err != nil {
		return Edited{}, engi.Errorf(engi.KindOf(err), "%s: %w", name, err)
	}
	if len(text) > MaxText {
		return Edited{}, tooLarge(name, MaxText)
	}
	e := Edited{Path: name, Replaced: n, Size: int64(len(text)), SHA256: digest([]byte(text)), First: firstChange(string(raw), text)}
	if text == string(raw) {
		return e, nil
	}
	if err := g.Write(ctx, name, strings.NewReader(text), engi.WriteOptions{User: fi.Owner}); err != nil {
		return Edited{}, err
	}
	return e, nil
}

// apply makes all edits, or reports the first one that cannot be made.
func apply(text string, edits []Replacement) (string, int, error) {
	crlf := 2*strings.Count(text, "\r\n") > strings.Count(text, "\n")
	replaced := 0
	for i, e := range edits {
		which := ""
		if len(edits) > 1 {
			which = fmt.Sprintf("edit %d: ", i+1)
		}
		if e.Old == "" {
			return "", 0, engi.Errorf(engi.Invalid, "%sthe text to replace is empty", which).WithRemedy("to insert text, replace a nearby line by itself and the text")
		}
		if e.Old == e.New {
			return "", 0, engi.Errorf(engi.Invalid, "%sthe old text and the new text are the same", which)
		}
		from, to := e.Old, e.New
		if crlf {
			from, to = toCRLF(from), toCRLF(to)
		}
		n := strings.Count(text, from)
		if n == 0 && strings.HasSuffix(text, strings.TrimRight(from, "\r\n")) && strings.TrimRight(from, "\r\n") != "" {
			// The text to replace ends in a newline, which the last line of the file lacks.
			if short := strings.TrimRight(from, "\r\n"); strings.Count(text, short) == 1 || e.All {
				from, to, n = short, strings.TrimRight(to, "\r\n"), strings.Count(text, short)
			}
		}
		switch {
		case n == 0:
			return "", 0, engi.Errorf(engi.Conflict, "%sthe text to replace does not occur%s", which, closestLine(text, from)).
				WithRemedy("read the file again and copy the text exactly, including white space")
		case n > 1 && !e.All:
			return "", 0, engi.Errorf(engi.Conflict, "%sthe text to replace occurs %d times, in lines %s", which, n, lineNumbers(text, from)).
				WithRemedy("include more of the lines around it, or replace all")
		}
		if grown := int64(len(text)) + int64(n)*int64(len(to)-len(from)); grown > MaxText {
			return "", 0, engi.Errorf(engi.Invalid, "%sthe file would have %d bytes", which, grown).WithRemedy("make it smaller than %d MiB", MaxText>>20)
		}
		text = strings.ReplaceAll(text, from, to)
		replaced += n
	}
	return text, replaced, nil
}

func toCRLF(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n")
}

// lineNumbers lists the numbers of lines in which s begins, at most ten.
func lineNumbers(text, s string) string {
	var all []string
	for at, line := 0, 1; len(all) < 10; {
		i := strings.Index(text[at:], s)
		if i < 0 {
			break
		}
		line += strings.Count(text[at:at+i], "\n")
		all = append(all, fmt.Sprint(line))
		line += strings.Count(s, "\n")
		at += i + len(s)
	}
	return strings.Join(all, ", ")
}

// closestLine describes the line that is most similar to the first line of s
// that is not blank.
func closestLine(text, s string) string {
	want := ""
	for line := range strings.Lines(s) {
		if want = strings.TrimSpace(line); want != "" {
			break
		}
	}
	if want == "" {
		return ""
	}
	best, at, shown := 0.0, 0, ""
	n := 0
	for line := range strings.Lines(text) {
		n++
		if trimmed := strings.TrimSpace(line); trimmed != "" {
			if score := similarity(trimmed, want); score > best {
				best, at, shown = score, n, strings.TrimRight(line, "\r\n")
			}
		}
		if n >= 50_000 || best == 1 {
			break
		}
	}
	if best < 0.5 {
		return ""
	}
	return fmt.Sprintf("; line %d is most like it: %q", at, clip.Text(shown, 200))
}

// similarity returns the share of byte pairs that a and b have in common, from 0 to 1
// (the Sørensen–Dice coefficient of their bigrams).
func similarity(a, b string) float64 {
	a, b = a[:min(len(a), 500)], b[:min(len(b), 500)]
	if a == b {
		return 1
	}
	if len(a) < 2 || len(b) < 2 {
		return 0
	}
	pairs := map[[2]byte]int{}
	for i := range len(a) - 1 {
		pairs[[2]byte{a[i], a[i+1]}]++
	}
	common := 0
	for i := range len(b) - 1 {
		if p := [2]byte{b[i], b[i+1]}; pairs[p] > 0 {
			pairs[p]--
			common++
		}
	}
	return 2 * float64(common) / float64(len(a)+len(b)-2)
}

// firstChange returns the number of the first line in which a and b differ.
func firstChange(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	return 1 + strings.Count(a[:i], "\n")
}
