// Command versions looks at what the repository's modules are pinned to:
//
//	go run ./versions [-age] ROOT
//
// It fails when a module has a defect of advisories.txt. With -age it also fails
// when the pin of gVisor, which keeps programs in their sandboxes, is older than
// 60 days although there is a newer version. The flag is off by default, because
// the answer depends on the calendar and on the module proxy.
package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

const (
	gvisor = "gvisor.dev/gvisor"
	oldest = 60 * 24 * time.Hour
)

//go:embed advisories.txt
var advisories []byte

func main() {
	withAge := flag.Bool("age", false, "look at the age of gVisor's pin too; it asks the module proxy")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: versions [-age] ROOT")
		os.Exit(2)
	}
	ask := newest
	if !*withAge {
		ask = nil
	}
	found, err := check(flag.Arg(0), time.Now(), ask, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
	for _, f := range found {
		fmt.Fprintln(os.Stderr, "versions:", f)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// check returns what is wrong with the modules below root. newest returns the
// newest version of gVisor, or an error if nobody can tell. If newest is nil, the
// age of gVisor's pin is not looked at.
func check(root string, now time.Time, newest func(dir string) (string, error), note io.Writer) (found []string, err error) {
	files, err := filepath.Glob(filepath.Join(root, "tools", "*", "go.mod"))
	if err != nil {
		return nil, err
	}
	for _, file := range append(files, filepath.Join(root, "go.mod")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mod, err := modfile.ParseLax(file, text, nil)
		if err != nil {
			return nil, err
		}
		for _, r := range mod.Require {
			found = append(found, defects(file, r.Mod)...)
			if newest != nil && r.Mod.Path == gvisor && filepath.Dir(file) == filepath.Join(root, "tools", "runsc") {
				old, err := age(r.Mod.Version, now, filepath.Dir(file), newest, note)
				if err != nil {
					return nil, err
				}
				found = append(found, old...)
			}
		}
	}
	return found, nil
}

// defects returns the advisories that hold for a module.
func defects(file string, m module.Version) (found []string) {
	for s := bufio.NewScanner(bytes.NewReader(advisories)); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) != 3 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if f[1] == m.Path && semver.Compare(m.Version, f[2]) < 0 {
			found = append(found, fmt.Sprintf("%s requires %s %s, which has the defect %s: go get %s@%s or newer", file, m.Path, m.Version, f[0], m.Path, f[2]))
		}
	}
	return found
}

// age says when the pin of gVisor is too old.
func age(version string, now time.Time, dir string, newest func(string) (string, error), note io.Writer) ([]string, error) {
	pinned, err := module.PseudoVersionTime(version)
	if err != nil {
		return nil, fmt.Errorf("the pin of gVisor, %s, has no date: %v", version, err)
	}
	days := int(now.Sub(pinned).Hours() / 24)
	if now.Sub(pinned) <= oldest {
		return nil, nil
	}
	latest, err := newest(dir)
	if err == nil && latest == version {
		fmt.Fprintf(note, "gVisor is pinned to a version of %s, %d days ago: the newest there is\n", pinned.Format(time.DateOnly), days)
		return nil, nil
	}
	if err != nil {
		latest = "unknown: " + err.Error()
	}
	return []string{fmt.Sprintf(`gVisor is pinned to a version of %s, %d days ago; it must not be older than %d days, since it is what keeps programs in.
  The newest is %s. To move the pin:
    1. go get %s@VERSION in tools/runsc and in the root, with one VERSION
    2. go run ./filters in tools/runsc, for each architecture
    3. make build: a change of tools/runsc/overlay that has lost its place is reported
    4. make test, make chaos, and engi bench exec before and after`,
		pinned.Format(time.DateOnly), days, int(oldest.Hours()/24), latest, gvisor)}, nil
}

// newest asks the module proxy.
func newest(dir string) (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Version}}", gvisor+"@latest")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("the module proxy does not answer (%v)", err)
	}
	return strings.TrimSpace(string(out)), nil
}
