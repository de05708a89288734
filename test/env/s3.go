package env

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// S3 starts a server that speaks S3's protocol, with a bucket, and returns the
// bucket in the form of sandbox.workspaces, and the directory with its objects. The
// credentials are in this process's environment. If a program is missing, it skips
// the test.
func S3(t testing.TB) (at, dir string) {
	t.Helper()
	program := os.Getenv("ENGI_TEST_S3")
	if program == "" {
		Need(t, "a server for S3 in ENGI_TEST_S3 (.ci/s3 builds one)")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	root := t.TempDir()
	dir = filepath.Join(root, "objects", "engi-test")
	meta := filepath.Join(root, "meta")
	for _, d := range []string{dir, meta} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const key, secret = "engi-test-key", "engi-test-secret-of-some-length"
	cmd := exec.Command(program, "--access", key, "--secret", secret, "--port", address, "--quiet", "posix", "--sidecar", meta, filepath.Dir(dir))
	log, err := os.Create(filepath.Join(root, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the error is the kill
		log.Close()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			break
		}
		if time.Now().After(end) {
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("the server for S3 never listens: %v\n%s", err, said)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", key)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	return "s3+http://" + address + "/engi-test/some/prefix?region=us-east-1", dir
}
