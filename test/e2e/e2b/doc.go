// Package e2b runs E2B's own packages, as their vendor publishes them, against
// a running engi: JavaScript in js, Python in py and, of an earlier version, in py2.31. Every scenario is one behavior
// on which an application may rely; docs/e2b.md lists the scenarios. It needs root,
// runsc, the base template, Node and the packages that .ci/e2b installs.
package e2b
