package rest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
	"github.com/engi-dev/engi/internal/spelling"
)

// A checker collects the faults of a request. If the conversion finds some,
// the faults that the service would find are added, so that the
// caller sees all of them at once. Without faults of the conversion, the service
// checks the request itself.
type checker struct{ engi.Faults }

func (c *checker) addf(field, format string, args ...any) { c.Addf(field, format, args...) }

// also adds the faults that a service would find.
func (c *checker) also(all engi.Faults) {
	for _, f := range all {
		c.Add(f)
	}
}

// oneOf checks that a word is in a closed set; the empty word is always valid.
func (c *checker) oneOf(field, word string, set []string) {
	if word == "" || slices.Contains(set, word) {
		return
	}
	hint := ""
	if near := spelling.Nearest(word, set); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	c.addf(field, "%.40q is not one of %s%s", word, strings.Join(set, ", "), hint)
}

func (c *checker) natural(field string, n float64) {
	if n < 0 || math.IsNaN(n) || math.IsInf(n, 0) {
		c.addf(field, "%v is negative; leave it out to get the default", n)
	}
}

func (c *checker) text(field, s string) { c.Text(field, s) }

// absolute checks that a path in a sandbox is absolute; it may be / and need not be clean.
func (c *checker) absolute(field, p string) {
	switch {
	case p == "":
		c.addf(field, "it is missing")
	case p[0] != '/':
		c.addf(field, "%.80q is not absolute", p)
	case len(p) > engi.MaxPath:
		c.addf(field, "it is longer than %d bytes", engi.MaxPath)
	}
	c.text(field, p)
}

// time parses a time; an empty text returns the zero time.
func (c *checker) time(field, text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		c.addf(field, "%.40q is not a time such as 2026-11-20T20:00:00Z", text)
	}
	return t
}

// invalid returns the error for one fault of a request.
func invalid(field, format string, args ...any) error {
	return httpio.Invalid([]v1.Fault{{Field: field, Detail: fmt.Sprintf(format, args...)}})
}

// err returns the faults as one error; nil if there are none.
func (c *checker) err() error { return c.Err() }

// words returns the values of a closed set as strings.
func words[W ~string](all ...W) []string {
	out := make([]string, len(all))
	for i, w := range all {
		out[i] = string(w)
	}
	return out
}

// waitOf parses the duration that a caller wants to wait; an empty text means 0.
func waitOf(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := v1.ParseDuration(text)
	if err != nil {
		return 0, invalid("query.wait", "%v", err)
	}
	return min(d.Std(), maxWait), nil
}

// await calls wait with an object's ID, for as long as the text says. It reports only why the wait was
// broken off: the caller looks the object up afterwards, which reports all other errors again.
func await[X any, ID ~string](c *call, text string, id ID, wait func(context.Context, engi.Viewer, ID) (X, error)) error {
	most, err := waitOf(text)
	if err != nil || most == 0 {
		return err
	}
	waiting, cancel := c.waiting()
	defer cancel()
	ctx, cancel := context.WithTimeout(waiting, most)
	defer cancel()
	if _, err := wait(ctx, c.viewer(), id); err != nil && waiting.Err() != nil {
		return orEnded(waiting, err)
	}
	return nil
}

// maxWait is the maximum duration of one long poll.
const maxWait = 60 * time.Second
