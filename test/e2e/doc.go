// Package e2e tests the whole of engi with real sandboxes: every language's
// exact behaviour, and every way out of a sandbox that the isolation table
// names. It needs root, runsc and the base template; make test provides them.
package e2e
