// Package e2b runs E2B's own packages, as their vendor publishes them, against
// a started engi: JavaScript in js, Python in py and, of an earlier version, in py2.31. Every scenario is one thing
// that an application may rely on; docs/e2b.md lists them. It needs root,
// runsc, the base template, Node and what .ci/e2b installs.
package e2b
