// Package datadir locks a node's data directory, finds the server that holds it, and
// stops it. Other packages own the rest of the directory.
package datadir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// Names in a data directory.
const (
	LockName      = "lock"
	EndpointName  = "server.json"
	KeyName       = "admin.key"
	DatabaseName  = "engi.db"
	FunctionsName = "functions.db" // state of durable functions
	LogName       = "engi.log"
	PrivateName   = "private"
)

// An Endpoint holds the addresses of a running server on this machine.
type Endpoint struct {
	URL     string    `json:"url"`
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	DataDir string    `json:"data_dir"`
	KeyFile string    `json:"key_file"`
}

// LogFile returns the log file of a detached server of this data directory.
func LogFile(dataDir string) string { return filepath.Join(dataDir, LogName) }

// Discover returns the server that holds dataDir, and its admin key. It
// reports NotFound if no server runs, and Denied if this user may not use it.
func Discover(dataDir string) (Endpoint, string, error) {
	held, err := IsHeld(dataDir)
	if err != nil {
		return Endpoint{}, "", err
	}
	none := engi.Errorf(engi.NotFound, "no engi server runs on %s", dataDir).
		WithRemedy("start a server with 'engi serve', or name one with ENGI_URL and ENGI_KEY")
	if !held {
		return Endpoint{}, "", none
	}
	e, err := readEndpoint(dataDir)
	if pid, heldErr := holder(dataDir); err != nil || heldErr != nil || e.URL == "" || e.PID != pid {
		// The server is starting or stopping; an existing file is from a server that was killed.
		return Endpoint{}, "", none
	}
	secret, err := os.ReadFile(e.KeyFile)
	if err != nil {
		return Endpoint{}, "", engi.Errorf(engi.Denied, "read the admin key: %v", err).
			WithRemedy("set ENGI_KEY, or run as the user that runs the server")
	}
	return e, strings.TrimSpace(string(secret)), nil
}

func readEndpoint(dataDir string) (e Endpoint, err error) {
	data, err := os.ReadFile(filepath.Join(dataDir, EndpointName))
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(data, &e)
}

// Publish writes the file with which Discover finds a server.
func Publish(dataDir string, e Endpoint) error {
	text, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	path := filepath.Join(dataDir, EndpointName)
	if err := atomicfile.Write(path, append(text, '\n'), 0o600); err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	return nil
}

// Hold locks a data directory until release is called or the process ends
// for any reason. It reports Conflict, with the holder, if another process has it.
func Hold(dataDir string) (release func(), err error) {
	defer engi.Annotate(&err, "use data directory %s", dataDir)
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, engi.Errorf(engi.Denied, "%v", err).WithRemedy("choose a directory that you may write to with --data-dir")
	}
	info, err := os.Stat(dataDir)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, engi.Errorf(engi.Denied, "other users may write to it (mode %#o)", info.Mode().Perm()).
			WithRemedy("run 'chmod 700 %s'", dataDir)
	}
	f, err := os.OpenFile(filepath.Join(dataDir, LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, engi.Errorf(engi.Denied, "%v", err).WithRemedy("run as the directory's owner, or choose another with --data-dir")
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return nil, engi.Errorf(engi.Unavailable, "lock: %v", err)
		}
		text, _ := io.ReadAll(io.LimitReader(f, 200))
		return nil, engi.Errorf(engi.Conflict, "another engi holds it: %s", strings.TrimSpace(string(text))).
			WithRemedy("stop the other server with 'engi stop', or choose another directory with --data-dir")
	}
	// The lock belongs to the open file, which child processes do not inherit. The text is
	// for users and for the message above.
	text := fmt.Sprintf("process %d, since %s\n", os.Getpid(), time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(f.Truncate(0), writeAt(f, text)); err != nil {
		f.Close()
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	return func() { f.Close() }, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// holder returns the process that holds a locked directory.
func holder(dataDir string) (pid int, err error) {
	text, err := os.ReadFile(filepath.Join(dataDir, LockName))
	if err != nil {
		return 0, engi.Errorf(engi.Denied, "%v", err)
	}
	if _, err := fmt.Sscanf(string(text), "process %d,", &pid); err != nil || pid < 2 {
		return 0, engi.Errorf(engi.Internal, "the lock of %s has no process ID of its holder", dataDir)
	}
	return pid, nil
}

// IsHeld reports whether a process holds a data directory.
func IsHeld(dataDir string) (bool, error) {
	f, err := os.Open(filepath.Join(dataDir, LockName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return false, nil
	}
	if err != nil {
		return false, engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer f.Close()
	who := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &who); err != nil {
		return false, engi.Errorf(engi.Unavailable, "ask who holds %s: %v", dataDir, err)
	}
	return who.Type != unix.F_UNLCK, nil
}

// Stop asks the server that holds dataDir to stop and waits for its end. It
// reports NotFound if no server runs, and Expired if it does not stop in time.
func Stop(ctx context.Context, dataDir string) (pid int, err error) {
	held, err := IsHeld(dataDir)
	if err != nil {
		return 0, err
	}
	if !held {
		return 0, engi.Errorf(engi.NotFound, "no engi server runs on %s", dataDir)
	}
	if pid, err = holder(dataDir); err != nil {
		return 0, err
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return pid, engi.Errorf(engi.Denied, "stop process %d: %v", pid, err).WithRemedy("run as the user that started it")
	}
	for {
		if held, err := IsHeld(dataDir); err != nil || !held {
			return pid, err
		}
		if clock.Sleep(ctx, 20*time.Millisecond) != nil {
			return pid, engi.Errorf(engi.Expired, "process %d still holds %s: %v", pid, dataDir, ctx.Err()).
				WithRemedy("it waits for work to end; look at its log, or end it with 'kill -9 %d': its sandboxes live on", pid)
		}
	}
}
