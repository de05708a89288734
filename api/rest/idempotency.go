package rest

import "strings"

const (
	keyHeader = "Idempotency-Key"
	maxKey    = 255 // bytes of one
)

// prefer is a parameter of routes that can answer before the work is done.
type prefer struct {
	Prefer string `header:"Prefer" doc:"respond-async asks for 202 at once"`
}

// async reports whether the caller does not want to wait.
func (p prefer) async() bool {
	for part := range strings.SplitSeq(p.Prefer, ",") {
		if strings.EqualFold(strings.TrimSpace(part), "respond-async") {
			return true
		}
	}
	return false
}

// readKey takes over the Idempotency-Key of a route that takes one.
func (c *call) readKey() error {
	if c.route.Creates == "" {
		return nil
	}
	c.key = c.r.Header.Get(keyHeader)
	switch {
	case len(c.key) > maxKey:
		return invalid("header."+keyHeader, "it is longer than %d bytes", maxKey)
	case strings.ContainsFunc(c.key, func(r rune) bool { return r < '!' || r > '~' }):
		return invalid("header."+keyHeader, "it has something other than visible ASCII characters in it")
	}
	return nil
}
