// Package wall attacks the network wall from inside real sandboxes: every way
// out that we know, against an internet of the test's own. Each attack must
// fail and leave an event that says why; the same attack through an open door
// must succeed, so that none fails by accident. It needs root, runsc and the
// base template; make test provides them.
package wall
