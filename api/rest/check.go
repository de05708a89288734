package rest

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/httpio"
	"github.com/engi-dev/engi/api/strict"
	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/spelling"
)

// Bounds on what one request may list. The size of a request bounds the rest.
const (
	maxFiles = 10_000
	maxPath  = 1024 // bytes
	maxArgs  = 10_000
	maxEnv   = 10_000
)

// A checker collects the faults of a request.
type checker struct{ faults []v1.Fault }

func (c *checker) addf(field, format string, args ...any) {
	if len(c.faults) < strict.MaxFaults {
		c.faults = append(c.faults, v1.Fault{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
}

// oneOf checks a word of a closed set; the empty word is always good.
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

func (c *checker) text(field, s string) {
	if strings.ContainsRune(s, 0) {
		c.addf(field, "it has a NUL byte in it")
	}
}

// relative checks a path below the working directory.
func (c *checker) relative(field, p string) {
	switch {
	case p == "":
		c.addf(field, "it is empty")
	case len(p) > maxPath:
		c.addf(field, "it is longer than %d bytes", maxPath)
	case strings.ContainsRune(p, 0):
		c.addf(field, "it has a NUL byte in it")
	case strings.HasPrefix(p, "/"):
		c.addf(field, "%.80q is absolute; paths are relative to the working directory", p)
	case path.Clean(p) == ".." || strings.HasPrefix(path.Clean(p), "../"):
		c.addf(field, "%.80q leads out of the working directory", p)
	case path.Clean(p) != p || p == ".":
		c.addf(field, "%.80q is not the plainest form of a file's path, which would be %.80q", p, path.Clean(p))
	}
}

// env checks variables of an environment.
func (c *checker) env(env map[string]string) {
	if len(env) > maxEnv {
		c.addf("env", "there are more than %d", maxEnv)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			c.addf("env", "%.40q cannot be the name of a variable", name)
		}
		c.text("env."+name, env[name])
	}
}

// absolute checks a path inside.
func (c *checker) absolute(field, p string) {
	switch {
	case p == "":
		c.addf(field, "it is missing")
	case p[0] != '/':
		c.addf(field, "%.80q is not absolute", p)
	case len(p) > 4095:
		c.addf(field, "it is longer than 4095 bytes")
	}
	c.text(field, p)
}

func (c *checker) host(field, h string) {
	if len(h) > 255 || strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == '@' }) {
		c.addf(field, "%.80q cannot be a host", h)
	}
}

func (c *checker) metadata(m map[string]string) {
	if len(m) > 64 {
		c.addf("metadata", "there are more than 64 pairs")
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k == "" || len(k) > 256 || len(m[k]) > 256 {
			c.addf("metadata", "the pair %.40q has a name or a value that is empty or longer than 256 bytes", k)
		}
		c.text("metadata", k+m[k])
	}
}

// time reads a moment; an empty one is zero.
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

// invalid reports one fault of a request.
func invalid(field, format string, args ...any) error {
	return httpio.Invalid([]v1.Fault{{Field: field, Detail: fmt.Sprintf(format, args...)}})
}

// err reports the faults; nil if there are none.
func (c *checker) err() error { return httpio.Invalid(c.faults) }

// words are the values of a closed set as the wire has them.
func words[W ~string](all ...W) []string {
	out := make([]string, len(all))
	for i, w := range all {
		out[i] = string(w)
	}
	return out
}

// waitOf reads how long a caller wants to wait; an empty text is not at all.
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

// maxWait bounds one long poll.
const maxWait = 60 * time.Second
