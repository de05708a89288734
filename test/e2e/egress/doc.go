// Package egress attacks egress from inside real sandboxes: every way
// out that is known, against a simulated Internet. Each attack must
// fail and leave an event with the reason; the same attack with an open policy
// must succeed, so that none fails by accident. It needs root, runsc and the
// base template; make test provides them.
package egress
