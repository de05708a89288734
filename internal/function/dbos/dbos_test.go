package dbos_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/dbos"
	"github.com/engi-dev/engi/internal/function/functiontest"
)

func TestPromises(t *testing.T) {
	goleak.VerifyNone(t)
	functiontest.Promises(t, engines)
	goleak.VerifyNone(t)
}

func TestManyWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
	functiontest.ManyWaits(t, engines(t), 1000)
}

// engines opens engines on one file, one after the other.
func engines(t *testing.T) func() function.Engine {
	file := filepath.Join(t.TempDir(), "functions.db")
	return func() function.Engine {
		e, err := dbos.New(dbos.Options{File: file})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

func TestFileIsPrivate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "functions.db")
	e, err := dbos.New(dbos.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := e.Run(ctx, nil, func() {
		defer cancel()
		for _, name := range []string{file, file + "-wal"} {
			info, err := os.Stat(name)
			if err != nil {
				t.Error(err)
			} else if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, want 0600", name, info.Mode())
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), engi.NewFunctionRunID(), "f"); !engi.Is(err, engi.Unavailable) {
		t.Errorf("start after the end: %v, want Unavailable", err)
	}
}
