package main

import (
	"errors"
	"io/fs"
	"testing"
)

// TestFiltersAreOfThisVersion fails when the module was raised and the
// programs were not compiled again.
func TestFiltersAreOfThisVersion(t *testing.T) {
	have, err := pinned("../" + fileName)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no compiled programs for this machine: run go run ./filters in tools/runsc")
	}
	if err != nil {
		t.Fatal(err)
	}
	want, err := pinned("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if have != want {
		t.Errorf("the compiled seccomp programs are of %s, the module is %s: run go run ./filters in tools/runsc", have, want)
	}
}
