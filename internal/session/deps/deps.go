// Package deps installs the packages that code in sessions may import, once,
// into a template. The template has a definition derived from the packages and a name from their hash;
// the node's templates build it in a sandbox and keep it. Sessions share it read-only
// and need no network for the packages in it.
//
// It does not build templates (package disk) and does not know sessions.
package deps

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

//go:embed finish.ts
var finish string

// Paths in sandboxes: Dir is the directory of the packages, Config is the file deno.json.
const (
	Dir    = "/opt/deps"
	Config = Dir + "/deno.json"
	prefix = "deps-" // prefix of the templates' names
)

var (
	packageName = regexp.MustCompile(`^(jsr:@[a-z0-9-]+/[a-z0-9-]+|(@[A-Za-z0-9][A-Za-z0-9._~-]*/)?[A-Za-z0-9][A-Za-z0-9._~-]*)$`)
	versionName = regexp.MustCompile(`^(\*|[~^]?[0-9A-Za-z][0-9A-Za-z.+-]*)$`)
)

// Parse parses a package in the form NAME, NAME@VERSION or
// jsr:@SCOPE/NAME@VERSION. It reports Invalid.
func Parse(text string) (name, version string, err error) {
	name = strings.TrimPrefix(strings.TrimSpace(text), "npm:")
	if i := strings.LastIndex(name, "@"); i > 0 && name[i-1] != ':' {
		name, version = name[:i], name[i+1:]
		if !versionName.MatchString(version) {
			return "", "", engi.Errorf(engi.Invalid, "package %.100q: %.60q is not a version", text, version).
				WithRemedy("write it like @linear/sdk@39.0.0, @linear/sdk@^39 or @linear/sdk")
		}
	}
	if len(name) > 214 || !packageName.MatchString(name) {
		return "", "", engi.Errorf(engi.Invalid, "%.100q is not a package", text).WithRemedy("write it like @linear/sdk@39.0.0, or jsr:@std/encoding")
	}
	return name, version, nil
}

// sorted returns packages by name, without duplicates.
func sorted(all []engi.Dependency) []engi.Dependency {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b engi.Dependency) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Version, b.Version))
	})
	return slices.CompactFunc(all, func(a, b engi.Dependency) bool { return a.Package == b.Package })
}

// Name returns the name of the template with packages on top of base. The name contains a hash
// of the sorted packages and of the way in which they are installed.
func Name(base string, packages []engi.Dependency) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n", base, installScript, finish)
	for _, d := range sorted(packages) {
		fmt.Fprintf(h, "%s %s\n", d.Package, d.Version)
	}
	return prefix + hex.EncodeToString(h.Sum(nil))[:16]
}

var registryForm = regexp.MustCompile(`^https?://[A-Za-z0-9._~:/\[\]%-]+$`)

// Definition returns the template's definition. An empty registry means that of the
// node's environment, or else npm's public one.
func Definition(base, registry string, packages []engi.Dependency) ([]byte, error) {
	run := ""
	if registry != "" {
		if !registryForm.MatchString(registry) {
			return nil, engi.Errorf(engi.Invalid, "%.100q is not the URL of a registry", registry).WithRemedy("write registries.npm like https://npm.example.com/")
		}
		run = "NPM_CONFIG_REGISTRY='" + registry + "'\n"
	}
	packages = sorted(packages)
	imports := map[string]string{}
	var names []string
	var all strings.Builder
	for _, d := range packages {
		kind, name := "npm", d.Package
		if rest, ok := strings.CutPrefix(name, "jsr:"); ok {
			kind, name = "jsr", rest
		}
		version := ""
		if d.Version != "" {
			version = "@" + d.Version
		}
		imports[name] = kind + ":" + name + version
		imports[name+"/"] = kind + ":/" + name + version + "/"
		names = append(names, d.Package)
		fmt.Fprintf(&all, "await import(%q).catch(() => {});\n", name)
	}
	config, err := json.MarshalIndent(map[string]any{"imports": imports, "nodeModulesDir": "none"}, "", "  ")
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "encode deno.json: %v", err)
	}
	// JSON is valid YAML. Names have no characters that are special in shells.
	return json.Marshal(map[string]any{
		"base": "template:" + base,
		"files": []map[string]string{
			{"path": Config, "content": string(config)},
			{"path": Dir + "/all.ts", "content": all.String()},
			{"path": Dir + "/finish.ts", "content": finish},
		},
		"commands": []map[string]string{{"dir": Dir, "run": run + fmt.Sprintf(installScript, Dir, strings.Join(names, " "))}},
	})
}

// install downloads packages, then imports each once without network, which fills
// Deno's caches. Sandboxes may update the caches later, but not the packages.
const installScript = `# install %[2]s
export DENO_DIR=%[1]s/cache DENO_NO_UPDATE_CHECK=1 NO_COLOR=1
registry=${NPM_CONFIG_REGISTRY:-${npm_config_registry:-}}
if [ -n "$registry" ]; then export NPM_CONFIG_REGISTRY="${registry%%/}/"; fi
deno install
deno run -A --no-lock --no-config finish.ts %[1]s %[2]s
unset NPM_CONFIG_REGISTRY npm_config_registry
timeout 60 deno run --no-prompt --no-lock --cached-only --config deno.json --ignore-env --allow-sys --allow-read=%[1]s all.ts < /dev/null > /dev/null 2>&1 || true
rm -rf all.ts finish.ts cache/gen
chmod -R a+rX,go-w .
chmod 1777 cache
chmod a+w cache/*_cache_v* 2> /dev/null || true`
