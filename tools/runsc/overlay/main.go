// Command overlay prepares a copy of the pinned gVisor module with the few
// lines that engi changes:
//
//	go run ./overlay DIR
//	go build -modfile DIR/go.mod .
//
// (go build -overlay refuses to touch modules that were downloaded.) A change
// whose place is not there exactly once is an error, so that a new pin cannot
// lose one silently. What those of changes.go gain is in docs/performance.md.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

const module = "gvisor.dev/gvisor"

// A change replaces old, which is in the file once, by new. Without old, the file
// is new.
type change struct{ file, old, new string }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

// download returns where the module is, and brings it there if this machine
// has never seen it.
func download() (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var found struct{ Dir, Error string }
	if bad := json.Unmarshal(out, &found); bad != nil || found.Dir == "" {
		return "", fmt.Errorf("find the module: %v %s", errors.Join(err, bad), found.Error)
	}
	return found.Dir, nil
}

func run(dir string) error {
	dirOf, err := download()
	if err != nil {
		return err
	}
	// Relative, so that the program does not depend on where it was built.
	root := filepath.Join(dir, "gvisor")
	if filepath.IsAbs(root) {
		here, err := os.Getwd()
		if err == nil {
			root, err = filepath.Rel(here, root)
		}
		if err != nil {
			return err
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	if err := os.CopyFS(root, os.DirFS(dirOf)); err != nil {
		return err
	}
	for _, c := range slices.Concat(archive, pausing, changes, memory, starting) {
		file := filepath.Join(root, c.file)
		if c.old == "" {
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if err != nil {
				return err
			}
			_, err = f.WriteString(c.new)
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if n := bytes.Count(text, []byte(c.old)); n != 1 {
			return fmt.Errorf("%s has %q %d times: look at the change again", c.file, c.old, n)
		}
		text = bytes.Replace(text, []byte(c.old), []byte(c.new), 1)
		// The copy may be as read-only as the module is.
		if err := errors.Join(os.Remove(file), os.WriteFile(file, text, 0o644)); err != nil {
			return err
		}
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return err
	}
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		return err
	}
	mod = fmt.Appendf(mod, "\nreplace %s => %s\n", module, filepath.ToSlash(root))
	return errors.Join(os.WriteFile(filepath.Join(dir, "go.mod"), mod, 0o644), os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644))
}
