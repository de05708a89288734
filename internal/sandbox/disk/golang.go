package disk

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
	"github.com/engi-dev/engi/internal/sandbox/priority"
)

const (
	goRoot       = "/usr/local/go"
	maxToolchain = 1 << 30 // bytes; maximum size of the archive
)

// installGo installs a release of Go in the root. It downloads the release as a module, so
// that the node's proxy settings and the checksum database apply.
func (j *job) installGo(ctx context.Context, g recipe.Toolchain) error {
	version := fmt.Sprintf("v0.0.1-go%s.linux-%s", g.Version, runtime.GOARCH)
	archive := filepath.Join(j.dir, "go.zip")
	want := g.Sums[runtime.GOARCH]
	program, haveGo := j.t.lookPath("go")
	var err error
	switch {
	case want != "":
		// unpackGo checks the sum, so the download needs no go command.
		err = j.downloadPlain(ctx, j.t.goProxy(ctx, program), version, archive)
		if !haveGo || !engi.Is(err, engi.Unavailable) {
			break
		}
		j.report.log(err.Error() + "; trying the go command")
		fallthrough
	case haveGo:
		archive, err = j.downloadWithGo(ctx, program, version)
	default:
		err = engi.Errorf(engi.Unsupported, "there is no go command to verify the download").
			WithRemedy("install Go, or give the sum of golang.org/toolchain %s for %s under 'go: sum:'", version, runtime.GOARCH)
	}
	if err != nil {
		return err
	}
	return j.unpackGo(ctx, archive, "golang.org/toolchain@"+version+"/", want)
}

// goProxy returns the first HTTP module proxy in the node's settings, or empty if there
// is none.
func (t *Templates) goProxy(ctx context.Context, program string) string {
	setting := t.env("GOPROXY")
	if setting == "" && program != "" {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "env", "GOPROXY")
		cmd.Env = append(slices.Clone(t.o.Env), "GOTOOLCHAIN=local")
		if out, err := cmd.Output(); err == nil {
			setting = strings.TrimSpace(string(out))
		}
	}
	if setting == "" {
		setting = "https://proxy.golang.org"
	}
	first, _, _ := strings.Cut(strings.ReplaceAll(setting, "|", ","), ",")
	if strings.HasPrefix(first, "http://") || strings.HasPrefix(first, "https://") {
		return strings.TrimRight(first, "/")
	}
	return ""
}

// downloadWithGo downloads and verifies the module with the node's go command. It
// uses a temporary cache, so that the node's cache does not grow by half a gigabyte.
func (j *job) downloadWithGo(ctx context.Context, program, version string) (string, error) {
	cache := filepath.Join(j.dir, "modcache")
	cmd := exec.CommandContext(ctx, program, "mod", "download", "-x", "-json", "golang.org/toolchain@"+version)
	cmd.Dir = j.dir
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(slices.Clone(j.t.o.Env), "GOMODCACHE="+cache, "GOFLAGS=-modcacherw", "GOTOOLCHAIN=local", "GOWORK=off", "GO111MODULE=on")
	var out bytes.Buffer
	lines := &lineWriter{to: j.report.log}
	cmd.Stdout, cmd.Stderr = &out, writerFunc(lines.write)
	err := priority.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	lines.flush()
	if ctx.Err() != nil {
		return "", engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	var answer struct{ Zip, Error string }
	if e := json.Unmarshal(out.Bytes(), &answer); e != nil && err == nil {
		return "", engi.Errorf(engi.Internal, "go mod download: %v", e)
	}
	switch {
	case strings.Contains(answer.Error, "404") || strings.Contains(answer.Error, "410") || strings.Contains(answer.Error, "unknown revision"):
		return "", invalid("there is no such release: %s", printable(answer.Error)).WithRemedy("correct the version under 'go'")
	case strings.Contains(answer.Error, "SECURITY ERROR"):
		return "", invalid("go mod download: %s", printable(answer.Error)).WithRemedy("do not use this proxy until its owner has explained this")
	case answer.Error != "" || err != nil:
		return "", engi.Errorf(engi.Unavailable, "go mod download: %s %v", printable(answer.Error), err).WithRemedy("check this machine's network and GOPROXY, then build again")
	}
	return answer.Zip, nil
}

// downloadPlain downloads the module from a proxy. The caller checks the sum.
func (j *job) downloadPlain(ctx context.Context, proxy, version, to string) error {
	if proxy == "" {
		return engi.Errorf(engi.Unavailable, "download Go: GOPROXY has no HTTP proxy").WithRemedy("set GOPROXY to a module proxy, or install Go")
	}
	client, err := j.t.client()
	if err != nil {
		return err
	}
	url := proxy + "/golang.org/toolchain/@v/" + version + ".zip"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return invalid("GOPROXY: %v", err)
	}
	unavailable := func(what any) error {
		return engi.Errorf(engi.Unavailable, "download Go: %v", what).WithRemedy("check this machine's network and GOPROXY, then build again")
	}
	resp, err := client.Do(req)
	if err != nil {
		return unavailable(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone:
		return invalid("there is no such release of Go").WithRemedy("correct the version under 'go'")
	case resp.StatusCode != http.StatusOK:
		return unavailable(resp.Status)
	}
	f, err := os.Create(to)
	if err != nil {
		return fileError(err)
	}
	defer f.Close()
	n, err := io.Copy(f, io.TeeReader(io.LimitReader(resp.Body, maxToolchain), &meter{rep: j.report, total: resp.ContentLength}))
	if err != nil {
		return unavailable(err)
	}
	if n == maxToolchain {
		return invalid("download Go: the archive is too long")
	}
	return fileError(f.Close())
}

// unpackGo checks the sum of the archive and extracts the files needed to compile,
// without tests and test data.
func (j *job) unpackGo(ctx context.Context, archive, prefix, want string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return invalid("the archive of Go is broken: %v", err)
	}
	defer z.Close()
	if want != "" {
		got, err := moduleSum(&z.Reader)
		if err != nil {
			return err
		}
		if got != want {
			return invalid("the archive of Go has the sum %s, but the definition has %s", got, want).WithRemedy("check the proxy; if it is right, correct 'go: sum:'")
		}
	}
	budget := newBudget()
	for i, f := range z.File {
		if err := ctx.Err(); err != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		j.report.progress(int64(i+1), int64(len(z.File)))
		name, ok := strings.CutPrefix(f.Name, prefix)
		if !ok || path.Clean("/" + name)[1:] != name {
			return invalid("the archive of Go has a file %q", f.Name)
		}
		if !goNeeds(name) {
			continue
		}
		if budget.Entries--; budget.Entries < 0 || f.UncompressedSize64 > uint64(budget.Bytes) {
			return engi.Errorf(engi.Exhausted, "the archive of Go is too big")
		}
		r, err := f.Open()
		if err != nil {
			return invalid("the archive of Go is broken: %v", err)
		}
		mode := fileMode(0o644)
		if strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "pkg/tool/") {
			mode = 0o755
		}
		n, err := j.tree.Create(path.Join(goRoot, name), io.LimitReader(r, budget.Bytes), tree.File{Mode: mode, Modified: f.Modified})
		r.Close()
		if err != nil {
			return err
		}
		budget.Bytes -= n
	}
	// Remove the download, which is as large as the installed files.
	for _, scrap := range []string{"modcache", "go.zip"} {
		if at := filepath.Join(j.dir, scrap); exists(at) {
			if err := removeTree(at); err != nil {
				return err
			}
		}
	}
	return nil
}

func goNeeds(name string) bool {
	for _, dir := range []string{"test/", "doc/", "api/", "misc/", ".github/"} {
		if strings.HasPrefix(name, dir) {
			return false
		}
	}
	return !strings.Contains(name, "/testdata/") && !strings.HasSuffix(name, "_test.go")
}

// moduleSum returns the h1 sum of a module, as in go.sum.
func moduleSum(z *zip.Reader) (string, error) {
	files := slices.Clone(z.File)
	slices.SortFunc(files, func(a, b *zip.File) int { return strings.Compare(a.Name, b.Name) })
	all := sha256.New()
	for _, f := range files {
		r, err := f.Open()
		if err != nil {
			return "", invalid("the archive of Go is broken: %v", err)
		}
		one := sha256.New()
		_, err = io.Copy(one, io.LimitReader(r, maxToolchain))
		r.Close()
		if err != nil {
			return "", invalid("the archive of Go is broken: %v", err)
		}
		fmt.Fprintf(all, "%x  %s\n", one.Sum(nil), f.Name)
	}
	return "h1:" + base64.StdEncoding.EncodeToString(all.Sum(nil)), nil
}

// A meter reports the bytes written to it.
type meter struct {
	rep         *report
	done, total int64
}

func (m *meter) Write(p []byte) (int, error) {
	m.done += int64(len(p))
	m.rep.progress(m.done, max(m.total, 0))
	return len(p), nil
}
