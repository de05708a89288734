package guest_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// TestSavedAndRestored quiesces a guest with a waiting interpreter, saves its
// machine, restores it with another host name and token, and runs a program.
func TestSavedAndRestored(t *testing.T) {
	sb := boot(t)
	c := sb.open()
	must(t, c.Setup(t.Context(), inside))
	must(t, c.Prepare(t.Context(), wire.Prepare{Language: engi.Python, Interpreter: "/usr/bin/python3"}))
	p, err := c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "echo before; sleep 1; echo after"}, Tag: "sleeper"})
	must(t, err)
	for _, err := range p.Output(t.Context(), 0) {
		must(t, err)
		break
	}
	must(t, c.Quiesce(t.Context()))
	c.Close()

	image := filepath.Join(sb.dir, "image")
	must(t, os.Mkdir(image, 0o755))
	if out, err := exec.Command(sb.bin, sb.flags("checkpoint", "--image-path", image, sb.id)...).CombinedOutput(); err != nil {
		t.Fatalf("checkpoint: %v\n%s", err, out)
	}
	sb.proc.Wait()
	if out, err := exec.Command(sb.bin, sb.flags("delete", "--force", sb.id)...).CombinedOutput(); err != nil {
		t.Logf("delete: %v\n%s", err, out)
	}

	channel := filepath.Join(sb.dir, "chan")
	cfg, err := json.Marshal(wire.Config{Token: "fresh", Hostname: "restored", Time: time.Now().UnixNano(), Entropy: []byte("0123456789abcdef")})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(channel, wire.ConfigName), cfg, 0o600))
	must(t, os.WriteFile(filepath.Join(channel, wire.ResumeName), nil, 0o600))
	sb.id += "r"
	sb.proc = exec.Command(sb.bin, sb.flags("restore", "--bundle", sb.dir, "--image-path", image, sb.id)...)
	console, err := os.Create(filepath.Join(sb.dir, "console"))
	must(t, err)
	defer console.Close()
	sb.proc.Stdout, sb.proc.Stderr = console, console
	must(t, sb.proc.Start())

	sb.token = "fresh"
	c = sb.open()
	r, err := c.Run(t.Context(), wire.Run{ID: "restored", Language: engi.Python, Interpreter: "/usr/bin/python3",
		Files: []wire.File{{Path: "main.py", Data: []byte("print(6 * 7)")}}})
	must(t, err)
	out := ""
	for chunk, err := range r.Output(t.Context(), 0) {
		must(t, err)
		out += string(chunk.Data)
	}
	fin, err := r.Finish(t.Context())
	must(t, err)
	if out != "42\n" || !fin.Warm {
		t.Errorf("got %q, %+v", out, fin)
	}
	// The process from before is still known, and continues.
	p, err = c.Attach(t.Context(), "sleeper")
	must(t, err)
	out = ""
	for chunk, err := range p.Output(t.Context(), 0) {
		must(t, err)
		out += string(chunk.Data)
	}
	if out != "before\nafter\n" {
		t.Errorf("the process printed %q", out)
	}
}
