package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies compares the packages of the guest program with deps.txt. Each
// adds attack surface, memory and start-up time to every sandbox, so the list
// must be changed on purpose. UPDATE_DEPS=1 writes it.
func TestDependencies(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	if os.Getenv("UPDATE_DEPS") != "" {
		if err := os.WriteFile("deps.txt", []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile("deps.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(b))
	for _, p := range got {
		if !slices.Contains(want, p) {
			t.Errorf("%s is new: is it worth it in every sandbox?", p)
		}
	}
	for _, p := range want {
		if !slices.Contains(got, p) {
			t.Errorf("%s is not used any more: take it out of deps.txt", p)
		}
	}
}
