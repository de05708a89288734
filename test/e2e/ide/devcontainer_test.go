package ide

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/test/env"
)

// TestDevcontainersReadAlike reads files with engi and with the command line of devcontainers, and
// compares the results.
func TestDevcontainersReadAlike(t *testing.T) {
	env.Slow(t)
	cli := "devcontainers/node_modules/.bin/devcontainer"
	if _, err := os.Stat(cli); err != nil {
		env.Need(t, cli+" (make packages)")
	}
	files, err := filepath.Glob("../../../internal/sandbox/disk/recipe/testdata/devcontainers/*.json")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	// The command line looks for a container of the folder, and finds none.
	dir := t.TempDir()
	docker := filepath.Join(dir, "docker")
	if err := os.WriteFile(docker, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			folder := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Join(folder, ".devcontainer"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, ".devcontainer/devcontainer.json"), text, 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), cli, "read-configuration", "--workspace-folder", folder, "--docker-path", docker, "--mount-workspace-git-root", "false")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			ours, err := recipe.Parse(name, text)
			if err != nil {
				t.Fatal(err)
			}
			// The sandbox does not have the folder of this machine, but the folder of the container.
			out = bytes.ReplaceAll(out, []byte(folder), []byte(ours.WorkDir))
			var theirs struct {
				Configuration json.RawMessage
				Workspace     struct{ WorkspaceFolder string }
			}
			if err := json.Unmarshal(out, &theirs); err != nil {
				t.Fatal(err)
			}
			var c struct {
				Image, RemoteUser, ContainerUser                         string
				ContainerEnv                                             map[string]string
				RemoteEnv                                                map[string]*string
				OnCreateCommand, UpdateContentCommand, PostCreateCommand any
				PostStartCommand                                         string
				ForwardPorts                                             []any
				AppPort                                                  []any
				HostRequirements                                         struct{ CPUs float64 }
			}
			if err := json.Unmarshal(theirs.Configuration, &c); err != nil {
				t.Fatal(err)
			}
			if c.RemoteUser == "" {
				c.RemoteUser = c.ContainerUser
			}
			got := []any{ours.Base, ours.WorkDir, ours.User, ours.Start, ours.Size.VCPUs, len(ours.Env), len(ours.RemoteEnv)}
			want := []any{"image:" + c.Image, theirs.Workspace.WorkspaceFolder, c.RemoteUser, c.PostStartCommand, c.HostRequirements.CPUs, len(c.ContainerEnv), len(c.RemoteEnv)}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			for k, v := range c.ContainerEnv {
				if ours.Env[k] != v {
					t.Errorf("%s is %q, want %q", k, ours.Env[k], v)
				}
			}
			for k, v := range c.RemoteEnv {
				if d := cmp.Diff(v, ours.RemoteEnv[k]); d != "" {
					t.Errorf("%s: %s", k, d)
				}
			}
			for _, p := range append(c.ForwardPorts, c.AppPort...) {
				if !slices.ContainsFunc(ours.Ports, func(n int) bool {
					return fmt.Sprint(p) == fmt.Sprint(n) || strings.HasSuffix(fmt.Sprint(p), fmt.Sprint(":", n))
				}) {
					t.Errorf("port %v is not in %v", p, ours.Ports)
				}
			}
			i := 0
			for _, command := range []any{c.OnCreateCommand, c.UpdateContentCommand, c.PostCreateCommand} {
				if command == nil {
					continue
				}
				if i == len(ours.Commands) {
					t.Fatalf("%v is not run", command)
				}
				if text, ok := command.(string); ok && ours.Commands[i].Run != text {
					t.Errorf("it runs %q, want %q", ours.Commands[i].Run, text)
				}
				i++
			}
			if i != len(ours.Commands) {
				t.Errorf("it runs %+v", ours.Commands)
			}
			// The configuration that they print, without comments and variables, has the same meaning for engi.
			again, err := recipe.Parse(name, theirs.Configuration)
			if err != nil {
				t.Fatal(err)
			}
			ours.Warnings, again.Warnings = nil, nil
			if d := cmp.Diff(ours, again); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestDevcontainer builds a template from a devcontainer.json in a folder, and checks that
// its commands have run and that its server is visible through a preview.
func TestDevcontainer(t *testing.T) {
	env.Slow(t)
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	name, own := fmt.Sprintf("web-%d", os.Getpid()), "ENGI_DATA_DIR="+env.Dir(t)
	t.Cleanup(func() { // after the server has ended with its sandboxes
		remove := exec.Command(os.Getenv("ENGI_BIN"), "template", "remove", name)
		remove.Env = append(os.Environ(), own)
		if out, err := remove.CombinedOutput(); err != nil {
			t.Errorf("remove the template: %v\n%s", err, out)
		}
	})
	s := env.Serve(t, env.ServerOptions{Config: "[templates]\nimages = [\"registry.example/team/base=base\"]\n"})
	file := filepath.Join(t.TempDir(), name, ".devcontainer", "devcontainer.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	text := `{
	// What this node has instead of an image is in its configuration.
	"image": "registry.example/team/base:1",
	"forwardPorts": [8000],
	"remoteUser": "dev",
	"containerEnv": {"GREETING": "hello"},
	"remoteEnv": {"PATH": "${containerEnv:PATH}:/home/dev/bin"},
	"onCreateCommand": "mkdir -p ~/bin && printf '#!/bin/sh\\necho \"$GREETING from $(id -un) in $PWD\"\\n' > ~/bin/greet && chmod +x ~/bin/greet",
	"postCreateCommand": {"page": "greet > index.html", "other": ["touch", "a file"]},
	"postStartCommand": "exec python3 -m http.server 8000",
	"postCreateComand": "echo nothing",
}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	build := s.Engi("template", "build", file)
	said, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if want := `engi: line 11: unknown property "postCreateComand"; is it "postCreateCommand"?`; !strings.Contains(string(said), want) {
		t.Errorf("it said %s, want %s", said, want)
	}
	template, err := s.Template(t.Context(), name)
	if err != nil || template.User != "dev" || !slices.Equal(template.Ports, []int{8000}) {
		t.Errorf("%+v, %v", template, err)
	}
	x, err := s.CreateSandbox(t.Context(), v1.SandboxRequest{Template: name, Ports: &v1.PortPolicy{Private: true}})
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if p, err := s.Port(t.Context(), x.ID, 8000); err != nil || time.Since(began) > time.Minute {
			t.Fatalf("nothing listens, %v", err)
		} else if p.Listening {
			break
		}
	}
	q, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Host = "8000-" + strings.TrimPrefix(x.ID, "sbx_") + ".localhost"
	q.Header.Set("Authorization", "Bearer "+s.Key)
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if page, err := io.ReadAll(res.Body); err != nil || string(page) != "hello from dev in /workspaces/"+name+"\n" {
		t.Errorf("%d %s, %v", res.StatusCode, page, err)
	}
	if out := s.Run("sandbox", "exec", x.ID, "--", "sh", "-c", "greet; ls"); !strings.HasPrefix(out, "hello from dev") || !strings.Contains(out, "a file") {
		t.Errorf("inside: %s", out)
	}
}
