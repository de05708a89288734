package gvisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// namespacesEnv is set in a process that EnterNamespaces has started.
const namespacesEnv = "ENGI_IN_NAMESPACES"

// EnterNamespaces lets a program run machines without root rights. Call it first in
// main. For root it does nothing. For other users it runs this program again, with
// the same arguments, as root of a new user and mount namespace, forwards signals
// to it, and exits with its exit code. It returns only if the host does not allow
// namespaces, with Unsupported.
//
// In the namespace, the user's files belong to root, and there are no other users:
// machines cannot write files of other owners to a root directory, as builds with
// Writable do. Files that machines write into their own layer are not affected.
func EnterNamespaces() error {
	if os.Geteuid() == 0 {
		os.Unsetenv(namespacesEnv)
		return nil
	}
	if os.Getenv(namespacesEnv) != "" {
		return engi.Errorf(engi.Unsupported, "enter namespaces: still user %d in the namespace", os.Geteuid())
	}
	self, err := os.Executable()
	if err != nil {
		return engi.Errorf(engi.Internal, "enter namespaces: %v", err)
	}
	// Pdeathsig kills the child when the thread that started it exits, which must
	// not happen before this process does.
	runtime.LockOSThread()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), namespacesEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return engi.Errorf(engi.Unsupported, "enter namespaces: %v", err).WithRemedy("%s", namespaceFix())
	}
	go func() {
		for s := range signals {
			if s != syscall.SIGCHLD && s != syscall.SIGURG {
				cmd.Process.Signal(s)
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit) && exit.Exited():
		os.Exit(exit.ExitCode())
	case errors.As(err, &exit):
		status, _ := exit.Sys().(syscall.WaitStatus)
		os.Exit(128 + int(status.Signal()))
	}
	return engi.Errorf(engi.Internal, "enter namespaces: %v", err)
}

// namespaceFix returns instructions to change the setting that forbids namespaces.
func namespaceFix() string {
	for _, s := range []struct{ file, bad, fix string }{
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"},
	} {
		if raw, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(raw)) == s.bad {
			return "as root: " + s.fix
		}
	}
	return "run engi as root, or allow users to create user namespaces"
}

// rootless reports whether this process is not root, or is root only in a namespace.
func rootless() bool {
	raw, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return os.Geteuid() != 0
	}
	var id, outside, n int64
	if _, err := fmt.Sscan(string(raw), &id, &outside, &n); err != nil {
		return false
	}
	return os.Geteuid() != 0 || id == 0 && outside != 0
}
