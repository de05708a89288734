package ssh

import (
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	xssh "golang.org/x/crypto/ssh"
)

func TestMain(m *testing.M) {
	// Programs would ignore it as this process may, whose children they are here.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	goleak.VerifyTestMain(m)
}

// FuzzRequests reads what strangers' clients may send once they are known.
func FuzzRequests(f *testing.F) {
	f.Add(xssh.Marshal(struct{ Name, Value string }{"LANG", "C"}))
	f.Add(xssh.Marshal(destination{"localhost", 80, "127.0.0.1", 1}))
	f.Add(xssh.Marshal(struct {
		Term       string
		C, R, W, H uint32
		Modes      string
	}{"xterm", 80, 24, 0, 0, "\x00"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, value, ok := parseEnv(b); ok && (name == "" || strings.ContainsAny(name, "= \x00") || strings.ContainsRune(value, 0) || len(name)+len(value) > len(b)) {
			t.Errorf("the variable %q=%q", name, value)
		}
		if term, size, ok := parseTerminal(b); ok && (term == "" || strings.ContainsAny(term, "/= \x00") || size.Cols == 0 || size.Rows == 0 || size.Cols > 10_000 || size.Rows > 10_000) {
			t.Errorf("the terminal %q of %v", term, size)
		}
		if size, ok := parseSize(b); ok && (size.Cols == 0 || size.Rows == 0) {
			t.Errorf("the size %v", size)
		}
		if port, err := parseDestination(b); (err == nil) != (port > 0 && port < 65536) {
			t.Errorf("port %d, %v", port, err)
		}
	})
}

func TestDestinations(t *testing.T) {
	for host, ok := range map[string]bool{
		"localhost": true, "LOCALHOST.": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true, "[::1]": true, "::ffff:127.0.0.1": true, "0.0.0.0": true, "": true,
		"10.0.0.1": false, "localhost.example.com": false, "::ffff:10.0.0.1": false, "example.com": false, "2130706433": false, "0x7f000001": false,
	} {
		_, err := parseDestination(xssh.Marshal(destination{host, 80, "", 0}))
		if (err == nil) != ok {
			t.Errorf("%q: %v", host, err)
		}
	}
	for _, port := range []uint32{0, 65536, 1 << 31} {
		if _, err := parseDestination(xssh.Marshal(destination{"localhost", port, "", 0})); err == nil {
			t.Errorf("port %d", port)
		}
	}
}
