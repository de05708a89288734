package mirror

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/mod/module"

	"github.com/engi-dev/engi/internal/engi"
)

// Limits of warming.
const (
	maxWanted = 20_000 // maximum number of packages
	warmers   = 8      // maximum number of concurrent downloads
)

// A Wanted describes files to download into the cache: a URL of a registry, or the files
// of a project of PyPI for this node's kind of machine.
type Wanted struct {
	URL string

	project, version string
	hashes           []string // hashes of the wanted files; empty means all files that fit
}

// String returns the URL, or the project with its version.
func (w Wanted) String() string {
	if w.URL != "" {
		return w.URL
	}
	return w.project + "==" + w.version
}

// Read returns the packages that a file of a project names: package-lock.json and
// npm-shrinkwrap.json, yarn.lock, pnpm-lock.yaml, requirements.txt, go.sum,
// Cargo.lock; for any other file, the URLs of registries in it. It returns Invalid
// for files that cannot be read or name no packages.
func (b *Server) Read(name string, content []byte) (all []Wanted, err error) {
	base := path.Base(name)
	defer engi.Annotate(&err, "%.100s", base)
	switch {
	case base == "package-lock.json" || base == "npm-shrinkwrap.json":
		all, err = npmLock(content)
	case base == "pnpm-lock.yaml":
		for _, m := range pnpmLine.FindAllSubmatch(content, -1) {
			all = append(all, npmArchive(string(m[1]), string(m[2])))
		}
	case base == "go.sum":
		all, err = goSum(content)
	case base == "Cargo.lock":
		all = cargoLock(content)
	case strings.HasPrefix(base, "requirements") && strings.HasSuffix(base, ".txt"):
		all, err = requirements(content)
	default:
		all = b.urls(content)
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(x, y Wanted) int { return strings.Compare(x.String(), y.String()) })
	all = slices.CompactFunc(all, func(x, y Wanted) bool { return x.String() == y.String() })
	switch {
	case len(all) == 0:
		return nil, engi.Errorf(engi.Invalid, "it names no package").
			WithRemedy("give a package-lock.json, yarn.lock, pnpm-lock.yaml, requirements.txt, go.sum, Cargo.lock, or a list of URLs of registries")
	case len(all) > maxWanted:
		return nil, engi.Errorf(engi.Invalid, "it names %d packages, more than %d", len(all), maxWanted)
	}
	return all, nil
}

func npmArchive(name, version string) Wanted {
	return Wanted{URL: "https://" + npmHost + "/" + name + "/-/" + name[strings.LastIndexByte(name, '/')+1:] + "-" + version + ".tgz"}
}

var (
	pnpmLine = regexp.MustCompile(`(?m)^  '?/?((?:@[\w.~-]+/)?[\w.~-]+)@([0-9][\w.+-]*)(?:\([^\n]*)?'?:`)
	anyURL   = regexp.MustCompile(`https?://[A-Za-z0-9.-]+/[^\s"'<>#?)\]},]+`)
	pinned   = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*={2,3}\s*([A-Za-z0-9][A-Za-z0-9.!+_-]*)\s*(?:;.*)?$`)
	pipHash  = regexp.MustCompile(`--hash=sha256:([0-9a-f]{64})`)
)

// npmLock reads all versions of package-lock.json.
func npmLock(content []byte) (all []Wanted, err error) {
	type locked struct {
		Name         string                     `json:"name"`
		Version      string                     `json:"version"`
		Resolved     string                     `json:"resolved"`
		Link         bool                       `json:"link"`
		Dependencies map[string]json.RawMessage `json:"dependencies"`
	}
	var lock struct {
		Packages     map[string]locked          `json:"packages"`
		Dependencies map[string]json.RawMessage `json:"dependencies"`
	}
	if err := json.Unmarshal(content, &lock); err != nil {
		return nil, engi.Errorf(engi.Invalid, "it is not JSON")
	}
	add := func(name string, l locked) {
		if u, err := url.Parse(l.Resolved); err == nil && l.Resolved != "" && u.Host != npmHost && u.Host != "registry.yarnpkg.com" && !strings.Contains(u.Path, "/-/") {
			return // not from the registry
		}
		if npmName.MatchString(name) && npmVersion.MatchString(l.Version) && !l.Link {
			all = append(all, npmArchive(name, l.Version))
		}
	}
	for at, l := range lock.Packages {
		if _, name, ok := cutLast(at, "node_modules/"); ok {
			if l.Name != "" {
				name = l.Name // the package is installed under an alias
			}
			add(name, l)
		}
	}
	var walk func(in map[string]json.RawMessage, depth int)
	walk = func(in map[string]json.RawMessage, depth int) {
		for name, raw := range in {
			var l locked
			if json.Unmarshal(raw, &l) == nil && depth < 100 {
				add(name, l)
				walk(l.Dependencies, depth+1)
			}
		}
	}
	if len(lock.Packages) == 0 {
		walk(lock.Dependencies, 0)
	}
	return all, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func goSum(content []byte) (all []Wanted, err error) {
	for line := range strings.Lines(string(content)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		version, modOnly := strings.CutSuffix(f[1], "/go.mod")
		p, err := module.EscapePath(f[0])
		v, err2 := module.EscapeVersion(version)
		if err != nil || err2 != nil {
			return nil, engi.Errorf(engi.Invalid, "%.100q is no module with a version", f[0]+" "+f[1])
		}
		kinds := []string{"info", "zip"}
		if modOnly {
			kinds = []string{"mod"}
		}
		for _, kind := range kinds {
			all = append(all, Wanted{URL: "https://" + goHost + "/" + p + "/@v/" + v + "." + kind})
		}
	}
	return all, nil
}

func cargoLock(content []byte) (all []Wanted) {
	var name, version string
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		switch value = strings.Trim(value, `"`); key {
		case "[[package]]":
			name, version = "", ""
		case "name":
			name = value
		case "version":
			version = value
		case "source":
			if strings.HasPrefix(value, "registry+") && crateName.MatchString(name) && crateVersion.MatchString(version) {
				all = append(all, Wanted{URL: "https://" + crateFiles + "/crates/" + name + "/" + version + "/download"})
			}
		}
	}
	return all
}

func requirements(content []byte) (all []Wanted, err error) {
	for line := range strings.Lines(strings.ReplaceAll(string(content), "\\\n", " ")) {
		line, _, _ = strings.Cut(line, " #")
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "-") {
			continue
		}
		var hashes []string
		for _, m := range pipHash.FindAllStringSubmatch(line, -1) {
			hashes = append(hashes, m[1])
		}
		plain, _, _ := strings.Cut(line, " --")
		m := pinned.FindStringSubmatch(strings.TrimSpace(plain))
		if m == nil {
			return nil, engi.Errorf(engi.Invalid, "%.80q is not pinned", line).WithRemedy("pin everything, as 'pip freeze' and 'pip-compile' do")
		}
		project := normalProject(m[1])
		if !pypiProject.MatchString(project) {
			return nil, engi.Errorf(engi.Invalid, "%.80q is no name of a project of PyPI", m[1]).WithRemedy("names begin and end with a letter or a digit, and have at most 128 characters")
		}
		all = append(all, Wanted{project: project, version: m[2], hashes: hashes})
	}
	return all, nil
}

// urls returns the URLs of registries in a text.
func (b *Server) urls(content []byte) (all []Wanted) {
	for _, text := range anyURL.FindAllString(string(content), -1) {
		if u, err := url.Parse(text); err == nil && b.hosts[u.Host] != nil && (u.Host != pypiFiles || fits(path.Base(u.Path))) {
			all = append(all, Wanted{URL: text})
		}
	}
	return all
}

// fits reports whether a file of PyPI may be installed on this node's kind of
// machine.
func fits(file string) bool {
	if !strings.HasSuffix(file, ".whl") {
		return true
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return strings.HasSuffix(file, "-any.whl") || strings.Contains(file, "linux") && strings.HasSuffix(file, "_"+arch+".whl")
}

// A Warmed is the outcome for one Wanted.
type Warmed struct {
	Wanted Wanted
	Bytes  int64
	Err    error
}

// Warm downloads all into the cache, and yields each outcome when it is known. It ends
// early if ctx ends.
func (b *Server) Warm(ctx context.Context, all []Wanted) iter.Seq[Warmed] {
	return func(yield func(Warmed) bool) {
		ctx, cancel := context.WithCancel(ctx)
		todo, done := make(chan Wanted), make(chan Warmed)
		var workers sync.WaitGroup
		for range warmers {
			workers.Go(func() {
				for w := range todo {
					x := Warmed{Wanted: w}
					x.Bytes, x.Err = b.warm(ctx, w)
					select {
					case done <- x:
					case <-ctx.Done():
					}
				}
			})
		}
		workers.Go(func() {
			defer close(todo)
			for _, w := range all {
				select {
				case todo <- w:
				case <-ctx.Done():
					return
				}
			}
		})
		defer workers.Wait()
		defer cancel()
		for range all {
			select {
			case x := <-done:
				if !yield(x) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

func (b *Server) warm(ctx context.Context, w Wanted) (int64, error) {
	if w.URL != "" {
		return b.fetch(ctx, w.URL)
	}
	e := b.hosts[pypiHost]
	if e == nil {
		return 0, notServed("this node serves no packages of PyPI")
	}
	p := e.(*pypi)
	raw, ok, err := b.text(ctx, p.index(w.project), maxMetadata)
	var x pypiIndex
	if err == nil && (!ok || json.Unmarshal(raw, &x) != nil) {
		err = engi.Errorf(engi.NotFound, "PyPI has no %s", w.project)
	}
	if err != nil {
		return 0, err
	}
	wheels, sources := []string(nil), []string(nil)
	for _, f := range x.Files {
		if len(w.hashes) > 0 && !slices.Contains(w.hashes, f.Hashes["sha256"]) || !fits(f.Filename) || !ofVersion(f.Filename, w.version) {
			continue
		}
		if strings.HasSuffix(f.Filename, ".whl") {
			wheels = append(wheels, f.Filename)
			if f.metadataHash() != "" {
				wheels = append(wheels, f.Filename+".metadata")
			}
		} else {
			sources = append(sources, f.Filename)
		}
	}
	if len(wheels) == 0 {
		wheels = sources
	}
	if len(wheels) == 0 {
		return 0, engi.Errorf(engi.NotFound, "PyPI has no file of %s that fits", w)
	}
	var total int64
	for _, file := range wheels {
		n, err := b.fetch(ctx, "https://"+pypiFiles+"/packages/"+file)
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// ofVersion reports whether a file belongs to a version, whose trailing zeros may be
// left out.
func ofVersion(file, version string) bool {
	trim := func(v string) string {
		v = strings.ToLower(v)
		for strings.HasSuffix(v, ".0") {
			v = strings.TrimSuffix(v, ".0")
		}
		return strings.NewReplacer("-", "_", "+", "_").Replace(v)
	}
	if strings.HasSuffix(file, ".whl") {
		parts := strings.Split(file, "-")
		return len(parts) >= 5 && trim(parts[1]) == trim(version)
	}
	for _, end := range []string{".tar.gz", ".zip", ".tar.bz2", ".tgz"} {
		if rest, ok := strings.CutSuffix(file, end); ok {
			_, v, found := cutLast(rest, "-")
			return found && trim(v) == trim(version)
		}
	}
	return false
}
