// Package env is the base of tests of the whole system: it checks for the programs that
// they need, and starts nodes, in a separate process (Serve), in the test's process
// (Run), or one for all tests of a package (Shared). A missing program skips a
// test, and fails it under ENGI_TEST_REQUIRE=1. It is not for tests of one
// package.
package env

import (
	"os"
	"testing"
)

// Need skips a test that lacks a requirement, or fails it under
// ENGI_TEST_REQUIRE=1, as in CI.
func Need(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
		t.Fatalf("needs %s", what)
	}
	t.Skipf("needs %s", what)
}

// Machine skips a test without root or without the programs that the variables name.
func Machine(t testing.TB, variables ...string) {
	t.Helper()
	if what := Missing(variables...); what != "" {
		Need(t, what)
	}
}

// Missing is like Machine before a test runs: it returns the missing requirement, or
// "".
func Missing(variables ...string) string {
	if os.Geteuid() != 0 {
		return "root"
	}
	for _, v := range variables {
		if _, err := os.Stat(os.Getenv(v)); err != nil {
			return "a program named by " + v + " (make build)"
		}
	}
	return ""
}

// Slow skips a test that is too long for the gate, or needs more than the gate
// installs. It is the first statement of such a test, before the test asks for
// a program: "make test" passes -short, "make test-all" does not.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
}
