//go:build linux

package priority

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRaise runs in a separate process, because all its threads stay raised.
func TestRaise(t *testing.T) {
	if os.Getenv("ENGI_TEST_PRIORITY") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestRaise$", "-test.v")
		cmd.Env = append(os.Environ(), "ENGI_TEST_PRIORITY=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		} else if strings.Contains(string(out), "--- SKIP") {
			t.Skip("this user may not raise priorities")
		}
		return
	}
	if err := Raise(); err == unix.EACCES || err == unix.EPERM {
		if os.Getenv("ENGI_TEST_REQUIRE") != "" && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	stat := func(cmd *exec.Cmd) string {
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := Start(cmd); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, _ := out.Read(b)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b[:n]))
	}
	var all sync.WaitGroup
	for range 20 { // starts threads
		all.Go(func() {
			if got := stat(exec.Command("nice")); got != "0" {
				t.Errorf("a program has priority %s", got)
			}
		})
	}
	all.Wait()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if have, err := unix.Getpriority(unix.PRIO_PROCESS, id); err != nil && err != unix.ESRCH || err == nil && 20-have != raised {
			t.Errorf("thread %d of %d has priority %d, %v", id, len(threads), 20-have, err)
		}
	}
	if got, err := exec.Command("nice").Output(); err != nil || strings.TrimSpace(string(got)) != strconv.Itoa(raised) {
		t.Errorf("without Start: %s, %v", got, err)
	}
}
