package rest

import (
	"fmt"
	"maps"
	"math"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	"github.com/engi-dev/engi/api/strict"
	v1 "github.com/engi-dev/engi/api/v1"
)

// entries are the names that lone code is saved under.
var entries = map[engi.Language]string{
	engi.Python:     "main.py",
	engi.JavaScript: "main.js",
	engi.TypeScript: "main.ts",
	engi.Go:         "main.go",
	engi.Bash:       "main.sh",
}

// otherNames are what people call languages; suggestions only, since a
// request says what it means.
var otherNames = map[string]engi.Language{
	"py": engi.Python, "python3": engi.Python, "js": engi.JavaScript, "node": engi.JavaScript, "nodejs": engi.JavaScript,
	"ts": engi.TypeScript, "deno": engi.TypeScript, "golang": engi.Go, "sh": engi.Bash, "shell": engi.Bash,
}

// Bounds on what one request may list. The size of a request bounds the rest.
const (
	maxFiles = 10_000
	maxPath  = 1024 // bytes
	maxArgs  = 10_000
	maxEnv   = 10_000
)

// A checker collects the faults of a request.
type checker struct{ faults []v1.Fault }

func (c *checker) addf(field, format string, args ...any) {
	if len(c.faults) < strict.MaxFaults {
		c.faults = append(c.faults, v1.Fault{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
}

// oneOf checks a word of a closed set; the empty word is always good.
func (c *checker) oneOf(field, word string, set []string) {
	if word == "" || slices.Contains(set, word) {
		return
	}
	hint := ""
	if near := strict.Nearest(word, set); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	c.addf(field, "%.40q is not one of %s%s", word, strings.Join(set, ", "), hint)
}

func (c *checker) natural(field string, n float64) {
	if n < 0 || math.IsNaN(n) || math.IsInf(n, 0) {
		c.addf(field, "%v is negative; leave it out to get the default", n)
	}
}

func (c *checker) text(field, s string) {
	if strings.ContainsRune(s, 0) {
		c.addf(field, "it has a NUL byte in it")
	}
}

// relative checks a path below the working directory.
func (c *checker) relative(field, p string) {
	switch {
	case p == "":
		c.addf(field, "it is empty")
	case len(p) > maxPath:
		c.addf(field, "it is longer than %d bytes", maxPath)
	case strings.ContainsRune(p, 0):
		c.addf(field, "it has a NUL byte in it")
	case strings.HasPrefix(p, "/"):
		c.addf(field, "%.80q is absolute; paths are relative to the working directory", p)
	case path.Clean(p) == ".." || strings.HasPrefix(path.Clean(p), "../"):
		c.addf(field, "%.80q leads out of the working directory", p)
	case path.Clean(p) != p || p == ".":
		c.addf(field, "%.80q is not the plainest form of a file's path, which would be %.80q", p, path.Clean(p))
	}
}

// specOf translates a request, or reports Invalid with every fault of it.
func specOf(who engi.Owner, idempotency string, q v1.ExecutionRequest) (engi.ExecutionSpec, error) {
	var c checker
	p := program(&c, &q)

	var network engi.NetworkPolicy
	if q.Network != nil {
		network = networkOf(&c, "network", (*v1.NetworkPolicy)(q.Network))
	}
	c.oneOf("min_tier", q.MinTier, []string{string(engi.TierScript), string(engi.TierGVisor), string(engi.TierMicroVM)})
	c.oneOf("on_empty", q.OnEmpty, []string{string(engi.PoolWait), string(engi.PoolBootSync), string(engi.PoolReject)})
	c.natural("vcpus", q.VCPUs)
	c.natural("inodes", float64(q.Inodes))
	c.natural("processes", float64(q.Processes))
	c.natural("open_files", float64(q.OpenFiles))
	c.natural("artifacts.max_count", float64(q.Artifacts.MaxCount))
	if len(q.Template) > 200 {
		c.addf("template", "it is longer than 200 bytes")
	}
	c.text("template", q.Template)
	c.text("output_dir", q.OutputDir)
	if d := q.OutputDir; d != "" && (!strings.HasPrefix(d, "/") || path.Clean(d) != d || len(d) > maxPath) {
		c.addf("output_dir", "%.80q is not a plain absolute path", d)
	}
	if err := checkIdempotency(idempotency); err != "" {
		c.addf("header.Idempotency-Key", "%s", err)
	}

	if err := httpio.Invalid(c.faults); err != nil {
		return engi.ExecutionSpec{}, err
	}
	return engi.ExecutionSpec{
		Owner:    who,
		Program:  p,
		Template: q.Template,
		Limits: engi.Limits{
			Size: engi.Size{
				VCPUs: q.VCPUs, Memory: int64(q.Memory), Disk: int64(q.Disk), Inodes: q.Inodes,
				Processes: q.Processes, OpenFiles: q.OpenFiles,
			},
			Timeout:       q.Timeout.Std(),
			Output:        int64(q.Output),
			ArtifactBytes: int64(q.Artifacts.MaxBytes),
			ArtifactCount: q.Artifacts.MaxCount,
		},
		Network:      network,
		MinTier:      engi.Tier(q.MinTier),
		OnEmpty:      engi.EmptyPool(q.OnEmpty),
		ClaimTimeout: q.ClaimTimeout.Std(),
		OutputDir:    q.OutputDir,
		Idempotency:  idempotency,
	}, nil
}

func program(c *checker, q *v1.ExecutionRequest) engi.Program {
	language := engi.Language(q.Language)
	if q.Language == "" {
		c.addf("language", "it is missing; say one of %s", strings.Join(languages(), ", "))
	} else if meant, ok := otherNames[strings.ToLower(q.Language)]; ok {
		c.addf("language", "%q is not one of %s; did you mean %q?", q.Language, strings.Join(languages(), ", "), meant)
	} else {
		c.oneOf("language", q.Language, languages())
	}

	p := engi.Program{Language: language, Entry: q.Entry, Args: q.Args, Env: q.Env, Stdin: q.StdinBase64}
	if q.Stdin != "" {
		if len(q.StdinBase64) > 0 {
			c.addf("stdin_base64", "there is stdin already; send one of them")
		}
		p.Stdin = []byte(q.Stdin)
	}
	sources(c, q, &p)

	if len(q.Args) > maxArgs {
		c.addf("args", "there are more than %d", maxArgs)
	}
	for i, a := range q.Args {
		c.text(fmt.Sprintf("args[%d]", i), a)
	}
	c.env(q.Env)
	return p
}

// env checks variables of an environment.
func (c *checker) env(env map[string]string) {
	if len(env) > maxEnv {
		c.addf("env", "there are more than %d", maxEnv)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			c.addf("env", "%.40q cannot be the name of a variable", name)
		}
		c.text("env."+name, env[name])
	}
}

// sources collects the files of a program and checks that one of them can be
// run.
func sources(c *checker, q *v1.ExecutionRequest, p *engi.Program) {
	if len(q.Files) > maxFiles {
		c.addf("files", "there are more than %d", maxFiles)
		return
	}
	seen := map[string]bool{}
	if q.Code != "" {
		name := entries[p.Language]
		if q.Entry != "" && q.Entry != name {
			c.addf("entry", "code is saved as %q and is what runs; leave entry out, or send the program in files", name)
		}
		p.Entry = name
		p.Files = append(p.Files, engi.SourceFile{Path: name, Data: []byte(q.Code)})
		seen[name] = true
	}
	for i, f := range q.Files {
		field := fmt.Sprintf("files[%d]", i)
		c.relative(field+".path", f.Path)
		if seen[f.Path] {
			c.addf(field+".path", "%.80q is there twice", f.Path)
		}
		seen[f.Path] = true
		if f.Content != "" && len(f.ContentBase64) > 0 {
			c.addf(field, "it has both content and content_base64; send one of them")
		}
		data := f.ContentBase64
		if f.Content != "" {
			data = []byte(f.Content)
		}
		p.Files = append(p.Files, engi.SourceFile{Path: f.Path, Data: data, Mode: uint32(f.Mode)})
	}
	for _, f := range p.Files {
		for dir := path.Dir(f.Path); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if seen[dir] {
				c.addf("files", "%.80q is both a file and a directory", dir)
			}
		}
	}
	switch {
	case len(p.Files) == 0:
		c.addf("code", "there is no program: send code, or files")
	case q.Code != "":
	case q.Entry == "" && len(p.Files) > 1:
		c.addf("entry", "it is missing: say which of the %d files to run", len(p.Files))
	case q.Entry == "":
		p.Entry = p.Files[0].Path
	case !seen[q.Entry]:
		c.addf("entry", "%.80q is not one of the files", q.Entry)
	}
}

// checkIdempotency says what is wrong with a key; empty if nothing is.
func checkIdempotency(key string) string {
	if len(key) > 255 {
		return "it is longer than 255 bytes"
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }) {
		return "it has something other than visible ASCII characters in it"
	}
	return ""
}

func languages() []string {
	var names []string
	for _, l := range engi.Languages() {
		names = append(names, string(l))
	}
	return names
}

// artifactURL is relative to the server: we do not know the name that the
// caller reached us by.
func artifactURL(id engi.ExecutionID, name string) string {
	u := url.URL{Path: "/v1/executions/" + string(id) + "/artifacts/" + name}
	return u.EscapedPath()
}
