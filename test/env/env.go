// Package env is what tests of the whole system stand on: it probes for what
// they need, and starts nodes, in a process of their own (Serve), in the test's
// (Run), or one for all tests of a package (Shared). What is missing skips a
// test, and fails it where everything must be there. It is not for tests of one
// package.
package env

import (
	"os"
	"testing"
)

// Need skips a test that lacks what it needs, or fails it under
// ENGI_TEST_REQUIRE=1, as in CI.
func Need(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
		t.Fatalf("needs %s", what)
	}
	t.Skipf("needs %s", what)
}

// Machine needs root, and the programs that these variables name.
func Machine(t testing.TB, variables ...string) {
	t.Helper()
	if what := Missing(variables...); what != "" {
		Need(t, what)
	}
}

// Missing is Machine where no test runs yet: it returns what is missing, or
// nothing.
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
