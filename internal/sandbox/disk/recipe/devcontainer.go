package recipe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/spelling"
)

const (
	maxFolder      = 256     // bytes; maximum length of the workspace folder
	maxWarnings    = 100     // maximum number of warnings about one file
	maxEnvironment = 1 << 20 // bytes; maximum size of the values that replace variables in RemoteEnv
)

// A devcontainer is the state of the translation of a devcontainer.json to a definition.
type devcontainer struct {
	name     string // name of the template
	to       rawDefinition
	remote   map[string]*string
	user     string // user of the container; used without a remote user
	sudo     bool   // the user may use sudo
	line     int    // line of the current property
	warnings []string
}

// properties lists the supported properties in the order of reading: those after the folder may refer to it.
var properties = []struct {
	key  string
	read func(*devcontainer, json.RawMessage) error
}{
	{"workspaceFolder", (*devcontainer).folder},
	{"image", (*devcontainer).image},
	{"features", (*devcontainer).features},
	{"containerEnv", (*devcontainer).containerEnv},
	{"remoteEnv", (*devcontainer).remoteEnv},
	{"containerUser", func(c *devcontainer, v json.RawMessage) error { return c.text(v, &c.user) }},
	{"remoteUser", func(c *devcontainer, v json.RawMessage) error { return c.text(v, &c.to.User) }},
	{"forwardPorts", (*devcontainer).ports},
	{"appPort", (*devcontainer).ports},
	{"hostRequirements", (*devcontainer).requirements},
	{"onCreateCommand", (*devcontainer).command},
	{"updateContentCommand", (*devcontainer).command},
	{"postCreateCommand", (*devcontainer).command},
	{"postStartCommand", (*devcontainer).start},
}

// refused lists unsupported properties without which the result would be wrong.
var refused = map[string]string{
	"build":             "nothing here runs a Dockerfile",
	"dockerFile":        "nothing here runs a Dockerfile",
	"dockerComposeFile": "a template is one container",
}

// ignored lists properties with no effect on a template: those of editors, for which the
// reason is empty, and others, which cause a warning.
var ignored = map[string]string{
	"$schema": "", "name": "", "customizations": "", "portsAttributes": "", "otherPortsAttributes": "", "userEnvProbe": "", "updateRemoteUserUID": "",
	"shutdownAction": "", "waitFor": "", "init": "", "overrideFeatureInstallOrder": "", "extensions": "", "settings": "", "devPort": "",

	"initializeCommand": "nothing runs on this machine",
	"postAttachCommand": "nobody attaches to a sandbox",
	"mounts":            "sandboxes have volumes, which are named when they are created",
	"workspaceMount":    "no folder of this machine is in a sandbox",
	"runArgs":           "there is no Docker",
	"privileged":        "no sandbox is",
	"capAdd":            "sandboxes have the capabilities of ordinary containers",
	"securityOpt":       "there is no Docker",
	"overrideCommand":   "the entry point of an image never runs",
	"secrets":           "secrets are put into requests at the egress gateway, see 'engi secret'",
	"context":           "it belongs to a Dockerfile",
	"service":           "it belongs to Docker Compose",
	"runServices":       "it belongs to Docker Compose",
}

// isDevcontainer reports whether a definition is a devcontainer.json: a JSON object,
// perhaps a broken one, that has none of the keys of a definition.
func isDevcontainer(plain []byte) bool {
	rest, ok := bytes.CutPrefix(bytes.TrimSpace(plain), []byte("{"))
	if rest = bytes.TrimSpace(rest); !ok || len(rest) > 0 && rest[0] != '"' && rest[0] != '}' {
		return false
	}
	all, _ := members(plain, 1)
	return !slices.ContainsFunc(all, func(m member) bool { return m.key == "base" || m.key == "templates" })
}

// parseDevcontainer returns the definition in a devcontainer.json without comments.
func parseDevcontainer(name string, plain []byte) (d Definition, err error) {
	all, err := members(plain, 1)
	if err != nil {
		return d, err
	}
	c := &devcontainer{name: name, to: rawDefinition{WorkingDir: "/workspaces/" + name}}
	given := map[string]member{}
	for _, m := range all {
		if reason, ok := refused[m.key]; ok {
			return d, invalid("line %d: %q cannot be used: %s", m.line, m.key, reason).WithRemedy("build the image elsewhere, push it to a registry, and name it with 'image'")
		}
		given[m.key] = m // of equal keys, the last counts
	}
	for _, p := range properties {
		m, ok := given[p.key]
		if !ok || string(m.value) == "null" {
			continue
		}
		c.line = m.line
		if err := p.read(c, m.value); err != nil {
			return d, err
		}
	}
	c.warn(all)
	if c.to.Base == "" {
		return d, invalid("the devcontainer.json has no 'image'").WithRemedy("name an image of a registry, like debian:bookworm")
	}
	if c.to.User == "" {
		c.to.User = c.user
	}
	if u := c.to.User; c.sudo && u != "" && u != "root" {
		text := u + " ALL=(root) NOPASSWD:ALL\n"
		c.to.Files = append(c.to.Files, rawFile{Path: "/etc/sudoers.d/" + u, Content: &text, Mode: "0440"})
	}
	if d, err = c.to.check(); err != nil {
		return d, fmt.Errorf("devcontainer.json: %w", err)
	}
	for i := range d.Commands {
		d.Commands[i].Own = true
	}
	d.RemoteEnv, d.Warnings = c.remote, c.warnings
	return d, nil
}

// warn adds a warning for each property without effect.
func (c *devcontainer) warn(all []member) {
	known := slices.Collect(maps.Keys(ignored))
	for _, p := range properties {
		known = append(known, p.key)
	}
	for _, m := range all {
		if len(c.warnings) >= maxWarnings {
			return
		}
		c.line = m.line
		reason, off := ignored[m.key]
		switch {
		case off && reason != "":
			c.warnf("%q has no effect: %s", m.key, reason)
		case !slices.Contains(known, m.key):
			hint := ""
			if near := spelling.Nearest(m.key, known); near != "" {
				hint = fmt.Sprintf("; is it %q?", near)
			}
			c.warnf("unknown property %q%s", m.key, hint)
		}
	}
}

func (c *devcontainer) warnf(format string, args ...any) {
	if len(c.warnings) < maxWarnings {
		c.warnings = append(c.warnings, fmt.Sprintf("line %d: %s", c.line, fmt.Sprintf(format, args...)))
	}
}

// read decodes a value.
func (c *devcontainer) read(v json.RawMessage, to any, what string) error {
	if json.Unmarshal(v, to) != nil {
		return invalid("line %d: this must be %s", c.line, what)
	}
	return nil
}

// text decodes a text.
func (c *devcontainer) text(v json.RawMessage, to *string) error {
	if err := c.read(v, to, "text"); err != nil {
		return err
	}
	*to = c.expand(*to)
	return nil
}

func (c *devcontainer) folder(v json.RawMessage) error {
	err := c.text(v, &c.to.WorkingDir)
	if len(c.to.WorkingDir) > maxFolder { // every use of the variable repeats the folder
		return invalid("line %d: the folder's path is longer than %d bytes", c.line, maxFolder)
	}
	if path.IsAbs(c.to.WorkingDir) {
		c.to.WorkingDir = path.Clean(c.to.WorkingDir)
	}
	return err
}

func (c *devcontainer) image(v json.RawMessage) error {
	var ref string
	if err := c.text(v, &ref); err != nil {
		return err
	}
	if ref == "" || strings.ContainsAny(ref, " \t\n") {
		return invalid("line %d: %q is not an image", c.line, ref)
	}
	c.to.Base = "image:" + ref
	return nil
}

var variable = regexp.MustCompile(`\$\{[^{}]*\}`)

// expand replaces variables, except variables of the container. There is no local folder,
// so the container's folder replaces it. A definition sees nothing of the
// server's environment.
func (c *devcontainer) expand(s string) string {
	return variable.ReplaceAllStringFunc(s, func(v string) string {
		name, arg, _ := strings.Cut(v[2:len(v)-1], ":")
		switch name {
		case "localWorkspaceFolder", "containerWorkspaceFolder":
			return c.to.WorkingDir
		case "localWorkspaceFolderBasename", "devcontainerId":
			return c.name
		case "containerWorkspaceFolderBasename":
			return path.Base(c.to.WorkingDir)
		case "localEnv", "env":
			variable, otherwise, ok := strings.Cut(arg, ":")
			if !ok {
				c.warnf("${%s:%s} is empty: there is no local machine", name, variable)
			}
			return otherwise
		}
		return v
	})
}

func (c *devcontainer) containerEnv(v json.RawMessage) error {
	if err := c.read(v, &c.to.Env, "an object of texts"); err != nil {
		return err
	}
	for k, value := range c.to.Env {
		c.to.Env[k] = c.expand(value)
	}
	return nil
}

func (c *devcontainer) remoteEnv(v json.RawMessage) error {
	if err := c.read(v, &c.remote, "an object of texts"); err != nil {
		return err
	}
	if len(c.remote) > maxItems {
		return invalid("line %d: there are more than %d variables", c.line, maxItems)
	}
	for k, value := range c.remote {
		if value != nil {
			*value = c.expand(*value)
		}
		if !ValidVariable(k, "") || value != nil && !ValidVariable(k, *value) {
			return invalid("line %d: %q is not an environment variable", c.line, k)
		}
	}
	return nil
}

// ports reads forwardPorts and appPort: a port, ADDRESS:PORT, or a list of both.
func (c *devcontainer) ports(v json.RawMessage) error {
	var all []any
	if json.Unmarshal(v, &all) != nil {
		all = make([]any, 1)
		if err := c.read(v, &all[0], "a port, or a list of ports"); err != nil {
			return err
		}
	}
	if len(all) > maxItems {
		return invalid("line %d: there are more than %d ports", c.line, maxItems)
	}
	for _, one := range all {
		text := fmt.Sprint(one)
		number := text
		if host, after, err := net.SplitHostPort(text); err == nil {
			// The first part of an appPort may be a port of this machine.
			if _, err := strconv.Atoi(host); err != nil && host != "localhost" && host != "127.0.0.1" {
				c.warnf("port %q has no effect: it is one of another container", text)
				continue
			}
			number = after
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > 65535 {
			return invalid("line %d: %q is not a port", c.line, text)
		}
		if !slices.Contains(c.to.Ports, n) {
			c.to.Ports = append(c.to.Ports, n)
		}
	}
	return nil
}

func (c *devcontainer) requirements(v json.RawMessage) error {
	var q struct {
		CPUs            float64
		Memory, Storage rawJSONSize
		GPU             any
	}
	if err := c.read(v, &q, "an object with cpus, memory and storage"); err != nil {
		return err
	}
	if q.GPU != nil && q.GPU != false && q.GPU != "optional" {
		c.warnf("gpu has no effect: sandboxes have none")
	}
	c.to.Resources = rawResources{VCPUs: q.CPUs, Memory: rawSize(q.Memory), Disk: rawSize(q.Storage)}
	return nil
}

// rawJSONSize is a size: a number of bytes, or a text with a unit.
type rawJSONSize string

func (s *rawJSONSize) UnmarshalJSON(b []byte) error {
	*s = rawJSONSize(strings.TrimSuffix(strings.ToLower(strings.Trim(string(b), `"`)), "b")) // 1gb means 1 GiB
	return nil
}

// command adds a command to the build.
func (c *devcontainer) command(v json.RawMessage) error {
	text, err := c.shell(v)
	if err == nil && text != "" {
		c.to.Commands = append(c.to.Commands, rawCommand{Run: text})
	}
	return err
}

func (c *devcontainer) start(v json.RawMessage) (err error) {
	c.to.Start, err = c.shell(v)
	return err
}

// shell returns a command in the syntax of a shell. A text is such a command, a list has a program and
// its arguments, and the commands in an object run at the same time.
func (c *devcontainer) shell(v json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(v, &text) == nil {
		return containerVariable.ReplaceAllString(c.expand(text), `$${$1}`), nil
	}
	var args []string
	if json.Unmarshal(v, &args) == nil {
		for i, a := range args {
			a = "'" + strings.ReplaceAll(c.expand(a), "'", `'\''`) + "'"
			args[i] = containerVariable.ReplaceAllString(a, `'"$${$1}"'`)
		}
		return strings.Join(args, " "), nil
	}
	all, err := members(v, c.line)
	if err != nil {
		return "", invalid("line %d: a command is text, a list of texts, or an object of commands", c.line)
	}
	var lines []string
	for _, m := range all {
		if len(m.value) > 0 && m.value[0] == '{' {
			return "", invalid("line %d: %q must be text or a list of texts", c.line, m.key)
		}
		one, err := c.shell(m.value)
		if err != nil {
			return "", err
		}
		if one != "" {
			lines = append(lines, "(\n"+one+"\n) & all=\"$all $!\"")
		}
	}
	if len(lines) == 0 {
		return "", nil
	}
	return "all=\n" + strings.Join(lines, "\n") + "\nfor one in $all; do wait \"$one\" || exit; done", nil
}

var containerVariable = regexp.MustCompile(`\$\{containerEnv:([A-Za-z_][A-Za-z0-9_]*)\}`)

// ExpandRemote applies RemoteEnv to an environment. It reports Invalid if the environment
// becomes too large.
func (d Definition) ExpandRemote(env map[string]string) error {
	before, left := maps.Clone(env), maxEnvironment
	for k, v := range d.RemoteEnv {
		if v == nil {
			delete(env, k)
			continue
		}
		env[k] = variable.ReplaceAllStringFunc(*v, func(v string) string {
			name, ok := strings.CutPrefix(v[2:len(v)-1], "containerEnv:")
			if !ok {
				return v
			}
			name, otherwise, _ := strings.Cut(name, ":")
			value, ok := before[name]
			if !ok {
				value = otherwise
			}
			if left -= len(value); left < 0 {
				return ""
			}
			return value
		})
	}
	if left < 0 {
		return invalid("the variables in 'remoteEnv' become longer than %d bytes", maxEnvironment).WithRemedy("refer to shorter variables, or to fewer")
	}
	return nil
}

// featurePackages maps features without their version to the Debian packages that replace them.
var featurePackages = map[string][]string{
	"ghcr.io/devcontainers/features/common-utils": {"bash", "ca-certificates", "curl", "git", "jq", "less", "nano", "procps", "rsync", "sudo", "unzip", "vim-tiny", "wget", "xz-utils", "zip"},
	"ghcr.io/devcontainers/features/git":          {"git"},
	"ghcr.io/devcontainers/features/git-lfs":      {"git-lfs"},
	"ghcr.io/devcontainers/features/github-cli":   {"gh"},
	"ghcr.io/devcontainers/features/go":           {"golang-go"},
	"ghcr.io/devcontainers/features/java":         {"default-jdk-headless"},
	"ghcr.io/devcontainers/features/node":         {"nodejs", "npm"},
	"ghcr.io/devcontainers/features/php":          {"php-cli", "composer"},
	"ghcr.io/devcontainers/features/python":       {"python3", "python3-pip", "python3-venv"},
	"ghcr.io/devcontainers/features/ruby":         {"ruby-full"},
	"ghcr.io/devcontainers/features/rust":         {"cargo", "rustc"},

	// These features list packages in an option.
	"ghcr.io/devcontainers-contrib/features/apt-packages":     nil,
	"ghcr.io/devcontainers-contrib/features/apt-get-packages": nil,
	"ghcr.io/devcontainers-extra/features/apt-packages":       nil,
	"ghcr.io/devcontainers-extra/features/apt-get-packages":   nil,
	"ghcr.io/rocker-org/devcontainer-features/apt-packages":   nil,
}

func (c *devcontainer) features(v json.RawMessage) error {
	all, err := members(v, c.line)
	if err != nil {
		return invalid("line %d: this must be an object of features", c.line)
	}
	for _, m := range all {
		c.line = m.line
		id, _, _ := strings.Cut(m.key, "@")
		if i := strings.LastIndexByte(id, ':'); i > strings.LastIndexByte(id, '/') {
			id = id[:i]
		}
		packages, ok := featurePackages[strings.ToLower(id)]
		if !ok {
			return invalid("line %d: feature %q does more than install packages", m.line, m.key).
				WithRemedy("use an image with the feature, install it with onCreateCommand, or name packages with ghcr.io/devcontainers-extra/features/apt-packages")
		}
		options := map[string]any{}
		var version string
		if json.Unmarshal(m.value, &version) == nil {
			options["version"] = version
		} else if err := c.read(m.value, &options, "an object of options, or a version"); err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(options)) {
			value := fmt.Sprint(options[key])
			switch {
			case key == "version" && slices.Contains([]string{"", "latest", "lts", "current", "stable", "os-provided", "system"}, value):
			case key == "version":
				return invalid("line %d: feature %q is the distribution's package, which has one version only, perhaps not %s", m.line, m.key, value).
					WithRemedy("leave the version out, or use an image that has it")
			case key == "packages" && packages == nil:
				for p := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' }) {
					c.to.Packages = append(c.to.Packages, p)
				}
			default:
				c.warnf("option %q of %s has no effect", key, m.key)
			}
		}
		c.sudo = c.sudo || strings.HasSuffix(id, "/common-utils")
		c.to.Packages = append(c.to.Packages, packages...)
	}
	slices.Sort(c.to.Packages)
	c.to.Packages = slices.Compact(c.to.Packages)
	return nil
}
