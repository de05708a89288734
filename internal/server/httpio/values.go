package httpio

import (
	"io"
	"net/http"
)

// MaxValues is the maximum number of commas, colons and opening brackets in the JSON of a
// request. Decoded values can take hundreds of times the bytes of "[0,0,0".
const MaxValues = 200_000

// LimitValues returns a reader of the JSON in r that reports Invalid after
// MaxValues.
func LimitValues(r io.Reader) io.Reader { return &valueLimit{r: r} }

type valueLimit struct {
	r               io.Reader
	n               int
	quoted, escaped bool
}

// Read implements io.Reader.
func (l *valueLimit) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for _, c := range p[:n] {
		switch {
		case l.escaped:
			l.escaped = false
		case l.quoted:
			l.escaped, l.quoted = c == '\\', c != '"'
		case c == '"':
			l.quoted = true
		case c == ',' || c == ':' || c == '[' || c == '{':
			l.n++
		}
	}
	if l.n > MaxValues {
		return 0, Errorf(http.StatusBadRequest, "send less at once", "the body has more than %d values", MaxValues)
	}
	return n, err
}
