package datadir

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestMain plays another process that holds a data directory.
func TestMain(m *testing.M) {
	if dir := os.Getenv("ENGI_TEST_HOLD"); dir != "" {
		if _, err := Hold(dir); err != nil {
			panic(err)
		}
		_ = os.WriteFile(filepath.Join(dir, KeyName), []byte("engi_secret\n"), 0o600)
		_ = Publish(dir, Endpoint{URL: "http://127.0.0.1:1", PID: os.Getpid(), KeyFile: filepath.Join(dir, KeyName), DataDir: dir})
		os.Stdout.WriteString("held\n")
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func otherProcess(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ENGI_TEST_HOLD="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd
}

func TestSecondServerIsToldWhoHoldsTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	other := otherProcess(t, dir)
	_, err := Hold(dir)
	if !engi.Is(err, engi.Conflict) {
		t.Fatalf("error %v, want kind conflict", err)
	}
	var holder int
	if _, scan := fmtSscan(err.Error(), &holder); scan != nil || holder != other.Process.Pid {
		t.Errorf("%q does not name process %d", err, other.Process.Pid)
	}
	at, secret, err := Discover(dir)
	if err != nil || at.PID != other.Process.Pid || secret != "engi_secret" {
		t.Errorf("Discover: %+v, %q, %v", at, secret, err)
	}

	// However it dies, the directory is free at once.
	if err := other.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	if _, _, err := Discover(dir); !engi.Is(err, engi.NotFound) {
		t.Errorf("Discover after its death: %v, want kind not_found", err)
	}
	release, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	// The next server holds the directory, but has not said yet where it is.
	if at, _, err := Discover(dir); !engi.Is(err, engi.NotFound) {
		t.Errorf("Discover while the next one starts: process %d, %v, want kind not_found", at.PID, err)
	}
	release()
	release, err = Hold(dir)
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	release()
}

// fmtSscan finds the number after "process ".
func fmtSscan(text string, n *int) (int, error) {
	_, rest, ok := strings.Cut(text, "process ")
	if !ok {
		return 0, errors.New("no process named")
	}
	digits, _, _ := strings.Cut(rest, ",")
	return 1, json.Unmarshal([]byte(digits), n)
}

func TestStopWaitsUntilTheDirectoryIsFree(t *testing.T) {
	dir := t.TempDir()
	other := otherProcess(t, dir)
	pid, err := Stop(t.Context(), dir)
	if err != nil || pid != other.Process.Pid {
		t.Fatalf("%d, %v", pid, err)
	}
	if held, err := IsHeld(dir); held || err != nil {
		t.Errorf("still held: %t, %v", held, err)
	}
	if _, err := Stop(t.Context(), dir); !engi.Is(err, engi.NotFound) {
		t.Errorf("a second time: %v, want kind not_found", err)
	}
}

func TestDiscoverNothing(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"no directory":   func(dir string) error { return os.Remove(dir) },
		"empty":          func(string) error { return nil },
		"stale endpoint": func(dir string) error { return Publish(dir, Endpoint{URL: "http://127.0.0.1:1"}) },
		"garbage": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, LockName), []byte("?"), 0o600),
				os.WriteFile(filepath.Join(dir, EndpointName), []byte("{"), 0o600))
		},
	} {
		dir := filepath.Join(t.TempDir(), "d")
		if err := errors.Join(os.Mkdir(dir, 0o700), make(dir)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Discover(dir); !engi.Is(err, engi.NotFound) {
			t.Errorf("%s: %v, want kind not_found", name, err)
		}
	}
}

func TestDiscoverWhileTheHolderDoesNotListenYet(t *testing.T) {
	dir := t.TempDir()
	otherProcess(t, dir)
	for _, text := range []string{"", "{", "null"} {
		if err := os.WriteFile(filepath.Join(dir, EndpointName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Discover(dir); !engi.Is(err, engi.NotFound) {
			t.Errorf("endpoint %q: %v, want kind not_found", text, err)
		}
	}
}

func TestDirectoryOthersMayWriteIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir); !engi.Is(err, engi.Denied) || !strings.Contains(engi.RemedyOf(err), "chmod 700") {
		t.Errorf("%v (%s)", err, engi.RemedyOf(err))
	}
}

func TestLockIsNotInherited(t *testing.T) {
	dir := t.TempDir()
	release, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "30")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	release()
	if held, err := IsHeld(dir); held || err != nil {
		t.Errorf("a child keeps the directory: %t, %v", held, err)
	}
}

func TestHoldTwiceInOneProcess(t *testing.T) {
	dir := t.TempDir()
	release, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := Hold(dir); !engi.Is(err, engi.Conflict) {
		t.Errorf("%v, want kind conflict", err)
	}
}
