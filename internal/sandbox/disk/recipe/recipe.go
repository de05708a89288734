// Package recipe parses the definitions of templates: YAML, or devcontainer.json
// as described by containers.dev. It returns a validated
// Definition, or an error with the line and a suggestion.
// docs/templates.md describes the format.
//
// It does not check whether bases and files exist; package disk does.
package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/spelling"
)

const (
	maxDefinition = 256 << 10 // bytes; maximum size of the YAML text
	maxItems      = 1000      // maximum number of items of any list
)

// A Definition is the validated definition of a template. Settings missing in it come
// from the base. Its JSON form is part of the digest.
type Definition struct {
	Base      string
	Mirror    string            `json:",omitempty"`
	Version   string            `json:",omitempty"`
	Packages  []string          `json:",omitempty"`
	Go        *Toolchain        `json:",omitempty"`
	Files     []File            `json:",omitempty"`
	Commands  []Command         `json:",omitempty"`
	Env       map[string]string `json:",omitempty"`
	User      string            `json:",omitempty"`
	WorkDir   string            `json:",omitempty"`
	Shell     string            `json:",omitempty"`
	Ports     []int             `json:",omitempty"`
	Size      engi.Size
	Languages map[engi.Language]string `json:",omitempty"` // required languages with the path of the interpreter; an empty path means to search for it
	Warm      []engi.Language          // languages of warm pools; nil means all that can be warm
	Docs      bool                     `json:",omitempty"`
	Steps     []Step                   `json:",omitempty"`
	Start     string                   `json:",omitempty"`
	Ready     string                   `json:",omitempty"`
	Kernels   []string                 `json:",omitzero"` // languages of kernels started in advance; nil means the base's
	Private   bool                     `json:",omitempty"`

	// RemoteEnv holds the variables that a devcontainer.json adds to the environment of the base and
	// Env, see ExpandRemote. Nil removes a variable.
	RemoteEnv map[string]*string `json:",omitempty"`
	Warnings  []string           `json:"-"` // warnings about settings without effect
}

// A Step is a build step that is cached by its content.
type Step struct {
	Type    engi.StepType
	Args    []string // arguments as in engi.BuildStep
	Archive string   `json:"-"` // path of a file on the node
	Force   bool     `json:"-"`
}

// A File is a file to write to the root.
type File struct {
	Path    string
	Content string `json:",omitempty"`
	Source  string `json:",omitempty"` // path of a file on the node
	Mode    fs.FileMode
	Owner   string `json:",omitempty"` // owner: name of a user in the root; empty means root
}

// A Command is a step that runs in a sandbox.
type Command struct {
	Run  string
	User string `json:",omitempty"` // user that runs the command; empty means root
	Dir  string `json:",omitempty"` // working directory; empty means /
	Own  bool   `json:",omitempty"` // run by the template's user in its working directory instead
}

// A Toolchain is a release of Go with the sums of its module, by architecture.
type Toolchain struct {
	Version string
	Sums    map[string]string `json:",omitempty"`
}

// rawDefinition is the YAML form of a definition with all keys.
type rawDefinition struct {
	Name        string            `yaml:"name"`
	Base        string            `yaml:"base"`
	Mirror      string            `yaml:"mirror"`
	Version     rawString         `yaml:"version"`
	Packages    []string          `yaml:"packages"`
	Go          rawToolchain      `yaml:"go"`
	Files       []rawFile         `yaml:"files"`
	Commands    []rawCommand      `yaml:"commands"`
	Env         map[string]string `yaml:"env"`
	User        string            `yaml:"user"`
	WorkingDir  string            `yaml:"working_dir"`
	Shell       string            `yaml:"default_shell"`
	Ports       []int             `yaml:"ports"`
	ExposePorts []int             `yaml:"expose_ports"`
	Private     bool              `yaml:"private_ports"`
	Resources   rawResources      `yaml:"resources"`
	Languages   rawLanguages      `yaml:"languages"`
	Warm        *[]string         `yaml:"warm"`
	Docs        bool              `yaml:"docs"`
	Steps       []rawStep         `yaml:"steps"`
	Start       string            `yaml:"start"`
	Ready       string            `yaml:"ready"`
	Kernels     *[]string         `yaml:"kernels"`

	// Templates holds several definitions, in place of the keys above.
	Templates map[string]rawDefinition `yaml:"templates"`
}

type rawFile struct {
	Path    string  `yaml:"path"`
	Content *string `yaml:"content"`
	Source  string  `yaml:"source"`
	Mode    rawMode `yaml:"mode"`
	Owner   string  `yaml:"owner"`
}

type rawResources struct {
	VCPUs     float64 `yaml:"vcpus"`
	Memory    rawSize `yaml:"memory"`
	MemoryMB  int64   `yaml:"memory_mb"`
	Disk      rawSize `yaml:"disk"`
	DiskGB    float64 `yaml:"disk_gb"`
	Inodes    int64   `yaml:"inodes"`
	Processes int     `yaml:"processes"`
	OpenFiles int     `yaml:"open_files"`
}

// rawString is a text in YAML that may be written as a number, for versions.
type rawString string

func (s *rawString) UnmarshalYAML(b []byte) error {
	*s = rawString(strings.Trim(strings.TrimSpace(string(b)), `"'`))
	return nil
}

// rawMode is a file mode, octal in every notation.
type rawMode string

func (m *rawMode) UnmarshalYAML(b []byte) error {
	*m = rawMode(strings.TrimPrefix(strings.Trim(strings.TrimSpace(string(b)), `"'`), "0o"))
	return nil
}

// rawSize is a number of bytes, or a number with a unit.
type rawSize string

func (s *rawSize) UnmarshalYAML(b []byte) error {
	*s = rawSize(strings.Trim(strings.TrimSpace(string(b)), `"'`))
	return nil
}

// rawCommand is a shell command, or a map with a command, user and directory.
type rawCommand struct {
	Run  string `yaml:"run"`
	User string `yaml:"user"`
	Dir  string `yaml:"dir"`
}

func (c *rawCommand) UnmarshalYAML(decode func(any) error) error {
	if !isMap(decode) {
		return decode(&c.Run)
	}
	type plain rawCommand
	return decode((*plain)(c))
}

// rawToolchain is a version, or a map with sums.
type rawToolchain struct {
	Version string            `yaml:"version"`
	Sum     map[string]string `yaml:"sum"`
}

func (g *rawToolchain) UnmarshalYAML(decode func(any) error) error {
	if !isMap(decode) {
		return decode((*rawString)(&g.Version))
	}
	type plain rawToolchain
	return decode((*plain)(g))
}

func isMap(decode func(any) error) bool {
	var v map[string]any
	return decode(&v) == nil && v != nil
}

// rawLanguages is a list of names, or a map from names to paths.
type rawLanguages map[string]string

func (l *rawLanguages) UnmarshalYAML(decode func(any) error) error {
	if !isMap(decode) {
		var names []string
		if err := decode(&names); err != nil {
			return err
		}
		*l = rawLanguages{}
		for _, name := range names {
			(*l)[name] = ""
		}
		return nil
	}
	return decode((*map[string]string)(l))
}

// Parse returns the definition of a template in a YAML text, or in a
// devcontainer.json.
func Parse(name string, text []byte) (Definition, error) {
	if len(text) > maxDefinition {
		return Definition{}, invalid("the definition has %d bytes; %d are allowed", len(text), maxDefinition)
	}
	if plain := plainJSON(text); isDevcontainer(plain) {
		return parseDevcontainer(name, plain)
	}
	doc, err := parseDocument(text)
	if err != nil {
		return Definition{}, err
	}
	raw := doc
	if all := doc.Templates; all != nil {
		doc.Templates = nil
		if !reflect.DeepEqual(doc, rawDefinition{}) {
			return Definition{}, invalid("a definition has either 'templates' or the keys of one template, not both")
		}
		var ok bool
		if raw, ok = all[name]; !ok {
			return Definition{}, invalid("the definition has no template %q, only %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", ")).
				WithRemedy("name the template to build: use '--as NAME', or 'name' in the request")
		}
		if raw.Templates != nil {
			return Definition{}, invalid("template %q has 'templates' in it", name)
		}
	}
	if raw.Name != "" && raw.Name != name {
		return Definition{}, invalid("the definition has the name %q, not %q", raw.Name, name)
	}
	return raw.check()
}

func parseDocument(text []byte) (doc rawDefinition, err error) {
	// Refuse aliases: they could expand a short text to a very long one, and are not needed.
	for _, t := range lexer.Tokenize(string(text)) {
		if t.Type == token.AliasType {
			return doc, invalid("line %d: aliases are not supported: write the value out", t.Position.Line)
		}
	}
	// The decoder may panic on some trees that its parser makes: a tag without a
	// value, for example. It has changed no state of this process by then.
	defer func() {
		if recover() != nil {
			err = invalid("the definition is not valid YAML").WithRemedy("remove tags such as !name, and empty values")
		}
	}()
	err = yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&doc)
	if errors.Is(err, io.EOF) {
		return doc, invalid("the definition is empty").WithRemedy("write at least 'base: debian:bookworm'")
	}
	if err != nil {
		return doc, yamlError(err)
	}
	return doc, nil
}

func invalid(format string, args ...any) *engi.Error {
	return engi.Errorf(engi.Invalid, format, args...)
}

var unknownField = regexp.MustCompile(`unknown field "([^"]*)"`)

// yamlError turns an error of the parser into one line.
func yamlError(err error) error {
	var y yaml.Error
	if !errors.As(err, &y) {
		return invalid("%v", err)
	}
	line := 0
	if t := y.GetToken(); t != nil && t.Position != nil {
		line = t.Position.Line
	}
	m := unknownField.FindStringSubmatch(y.GetMessage())
	if m == nil {
		if t, ok := errors.AsType[*yaml.TypeError](err); ok {
			return invalid("line %d: this value must be %s", line, kindNames[t.DstType.Kind()])
		}
		return invalid("line %d: %s", line, y.GetMessage())
	}
	e := invalid("line %d: unknown key %q", line, m[1])
	if near := spelling.Nearest(m[1], keysOf(definitionTypes...)); near != "" {
		return e.WithRemedy("did you mean %q?", near)
	}
	return e.WithRemedy("the keys of a template are %s", strings.Join(keysOf(definitionTypes[0]), ", "))
}

// kindNames maps kinds of values to their names in error texts.
var kindNames = map[reflect.Kind]string{
	reflect.String: "text", reflect.Int: "a whole number", reflect.Int64: "a whole number", reflect.Float64: "a number",
	reflect.Bool: "true or false", reflect.Slice: "a list", reflect.Map: "a map", reflect.Struct: "a map",
}

// definitionTypes lists the types with keys.
var definitionTypes = []reflect.Type{
	reflect.TypeFor[rawDefinition](), reflect.TypeFor[rawFile](), reflect.TypeFor[rawCommand](),
	reflect.TypeFor[rawResources](), reflect.TypeFor[rawToolchain](), reflect.TypeFor[rawStep](), reflect.TypeFor[rawCopy](),
}

func keysOf(types ...reflect.Type) []string {
	var keys []string
	for _, t := range types {
		for f := range t.Fields() {
			if tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); tag != "" {
				keys = append(keys, tag)
			}
		}
	}
	return keys
}

var (
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	packagePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._~:=/@-]{0,127}$`)
	envPattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	userPattern    = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}$`)
	versionPattern = regexp.MustCompile(`^1\.\d{1,3}(\.\d{1,3}|rc\d)?$`)
	mirrorPattern  = regexp.MustCompile(`^https?://[^\s\[\]]+$`)
)

// ValidName reports whether name is valid for a template.
func ValidName(name string) bool { return namePattern.MatchString(name) }

// ValidVariable reports whether key and value are valid in an environment.
func ValidVariable(key, value string) bool {
	return envPattern.MatchString(key) && !strings.ContainsRune(value, 0)
}

// ValidMirror reports whether url can be a package archive.
func ValidMirror(url string) bool { return mirrorPattern.MatchString(url) }

// CheckName reports Invalid, with the rule, unless name is valid for a template.
func CheckName(name string) error {
	if !ValidName(name) {
		return invalid("%q is not a template name", name).WithRemedy("use lower-case letters, digits, '.', '_' and '-', at most 63, and begin with a letter or a digit")
	}
	return nil
}

// check validates the YAML form and returns the definition.
func (r rawDefinition) check() (d Definition, err error) {
	if r.Base == "" {
		return d, invalid("'base' is missing").WithRemedy("set it to debian:bookworm, oci:IMAGE, tar:PATH, template:NAME or host")
	}
	if r.Mirror != "" && !ValidMirror(r.Mirror) {
		return d, invalid("'mirror' must be an http or https URL")
	}
	if len(r.Packages) > maxItems || len(r.Files) > maxItems || len(r.Commands) > maxItems || len(r.Env) > maxItems {
		return d, invalid("more than %d items in a list", maxItems)
	}
	for _, p := range r.Packages {
		if !packagePattern.MatchString(p) {
			return d, invalid("%q is not the name of a package", p)
		}
	}
	d = Definition{
		Base: r.Base, Mirror: r.Mirror, Version: string(r.Version), User: r.User, Docs: r.Docs,
		Packages: r.Packages, Env: r.Env, Ports: r.Ports, Private: r.Private,
	}
	if d.Size, err = r.Resources.size(); err != nil {
		return d, err
	}
	if d.Go, err = r.Go.check(); err != nil {
		return d, err
	}
	for _, f := range r.Files {
		file, err := f.check()
		if err != nil {
			return d, err
		}
		d.Files = append(d.Files, file)
	}
	for i, c := range r.Commands {
		if strings.TrimSpace(c.Run) == "" || strings.ContainsRune(c.Run, 0) {
			return d, invalid("command %d is empty", i+1)
		}
		if c.User != "" && !userPattern.MatchString(c.User) {
			return d, invalid("command %d: %q is not a user name", i+1, c.User)
		}
		if c.Dir != "" && !path.IsAbs(c.Dir) {
			return d, invalid("command %d: 'dir' must be absolute", i+1)
		}
		d.Commands = append(d.Commands, Command{Run: c.Run, User: c.User, Dir: c.Dir})
	}
	for k, v := range r.Env {
		if !ValidVariable(k, v) {
			return d, invalid("%q is not an environment variable", k)
		}
	}
	if r.User != "" && !userPattern.MatchString(r.User) {
		return d, invalid("%q is not a user name", r.User)
	}
	if d.WorkDir, err = checkPath("working_dir", r.WorkingDir); err != nil {
		return d, err
	}
	if d.Shell, err = checkPath("default_shell", r.Shell); err != nil {
		return d, err
	}
	if r.ExposePorts != nil {
		if r.Ports != nil {
			return d, invalid("'ports' and 'expose_ports' mean the same: use one")
		}
		d.Ports = r.ExposePorts
	}
	for _, p := range d.Ports {
		if p < 1 || p > 65535 {
			return d, invalid("%d is not a port", p)
		}
	}
	if len(r.Languages) > 0 {
		d.Languages = map[engi.Language]string{}
	}
	for name, at := range r.Languages {
		lang, err := language(name)
		if err != nil {
			return d, err
		}
		if d.Languages[lang], err = checkPath("languages", at); err != nil {
			return d, err
		}
	}
	if d.Steps, err = checkSteps(r.Steps); err != nil {
		return d, err
	}
	if d.Start, d.Ready = r.Start, r.Ready; len(d.Start) > maxText || len(d.Ready) > maxText || strings.ContainsRune(d.Start+d.Ready, 0) {
		return d, invalid("'start' and 'ready' are shell commands of at most %d bytes", maxText)
	}
	if r.Kernels != nil {
		d.Kernels = []string{}
		for _, name := range *r.Kernels {
			lang, err := language(name)
			if err != nil {
				return d, err
			}
			d.Kernels = append(d.Kernels, string(lang))
		}
	}
	if r.Warm != nil {
		d.Warm = []engi.Language{}
		for _, name := range *r.Warm {
			lang, err := language(name)
			if err != nil {
				return d, err
			}
			d.Warm = append(d.Warm, lang)
		}
	}
	return d, nil
}

func language(name string) (engi.Language, error) {
	if lang := engi.Language(name); slices.Contains(engi.Languages(), lang) {
		return lang, nil
	}
	return "", invalid("%q is not a language", name).WithRemedy("the languages are %v", engi.Languages())
}

// checkPath validates an optional absolute path in the root.
func checkPath(key, p string) (string, error) {
	if p == "" {
		return "", nil
	}
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsRune(p, 0) || len(p) > 1024 {
		return "", invalid("'%s' must be an absolute, clean path below /, not %q", key, p)
	}
	for _, no := range []string{"/proc", "/sys", "/dev", "/.engi"} {
		if p == no || strings.HasPrefix(p, no+"/") {
			return "", invalid("'%s' cannot be in %s", key, no)
		}
	}
	return p, nil
}

func (f rawFile) check() (File, error) {
	d := File{Source: f.Source, Mode: 0o644, Owner: f.Owner}
	var err error
	if d.Path, err = checkPath("files.path", f.Path); err != nil {
		return d, err
	}
	if d.Path == "" {
		return d, invalid("a file needs a 'path'")
	}
	if (f.Content == nil) == (f.Source == "") {
		return d, invalid("file %s needs either 'content' or 'source'", f.Path)
	}
	if f.Content != nil {
		d.Content = *f.Content
	}
	if f.Owner != "" && !userPattern.MatchString(f.Owner) {
		return d, invalid("file %s: %q is not a user name", f.Path, f.Owner)
	}
	if f.Mode != "" {
		m, err := strconv.ParseUint(string(f.Mode), 8, 32)
		if err != nil || m > 0o777 {
			return d, invalid("file %s: %q is not an octal mode up to 0777", f.Path, f.Mode)
		}
		d.Mode = fs.FileMode(m)
	}
	return d, nil
}

func (g rawToolchain) check() (*Toolchain, error) {
	if g.Version == "" && g.Sum == nil {
		return nil, nil
	}
	version := strings.TrimPrefix(g.Version, "go")
	if !versionPattern.MatchString(version) {
		return nil, invalid("%q is not a version of Go", g.Version).WithRemedy("write it like 1.26.8")
	}
	for arch, sum := range g.Sum {
		if !strings.HasPrefix(sum, "h1:") {
			return nil, invalid("the sum of Go for %s must begin with h1:", arch)
		}
	}
	return &Toolchain{Version: version, Sums: g.Sum}, nil
}

func (r rawResources) size() (engi.Size, error) {
	s := engi.Size{VCPUs: r.VCPUs, Inodes: r.Inodes, Processes: r.Processes, OpenFiles: r.OpenFiles}
	var err error
	if s.Memory, err = r.Memory.bytes("memory"); err != nil {
		return s, err
	}
	if s.Disk, err = r.Disk.bytes("disk"); err != nil {
		return s, err
	}
	if r.MemoryMB != 0 {
		if s.Memory != 0 {
			return s, invalid("'memory' and 'memory_mb' mean the same: use one")
		}
		s.Memory = r.MemoryMB << 20
	}
	if r.DiskGB != 0 {
		if s.Disk != 0 {
			return s, invalid("'disk' and 'disk_gb' mean the same: use one")
		}
		s.Disk = int64(r.DiskGB * (1 << 30))
	}
	return s, s.Validate()
}

var sizePattern = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$`)

var units = map[string]float64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}

func (s rawSize) bytes(key string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	if m := sizePattern.FindStringSubmatch(string(s)); m != nil {
		n, err := strconv.ParseFloat(m[1], 64)
		if unit, ok := units[strings.ToLower(m[2])]; ok && err == nil && n*unit < 1<<60 {
			return int64(n * unit), nil
		}
	}
	return 0, invalid("'%s' is not a size: %q", key, string(s)).WithRemedy("write it like 512MiB or 2GiB, or in bytes")
}

// String returns the first line of the command, shortened, for progress reports.
func (c Command) String() string {
	line, _, more := strings.Cut(strings.TrimSpace(c.Run), "\n")
	if len(line) > 60 {
		line, more = strings.ToValidUTF8(line[:60], ""), true
	}
	if more {
		line += " …"
	}
	return fmt.Sprintf("run %s", line)
}
