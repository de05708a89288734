// Package template has the templates of workflows: what a workspace for some kind of work begins
// with, and the criteria by which the work is reviewed. It reads them from YAML, and has three of its own.
//
// It creates no workspaces, and checks no work.
package template

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace"
)

// Bounds of definitions.
const (
	maxText      = 256 << 10 // bytes of the YAML text
	maxTemplates = 100
	maxFiles     = 200
	maxFile      = 1 << 20 // bytes
	maxServices  = 10

	// proxyPort is the port of a preview that names none.
	proxyPort = 8000
)

// definition is a template in YAML. A preview is its type, or a mapping with more.
type definition struct {
	Files    []string  `yaml:"files"`
	Services []service `yaml:"services"`
	Preview  preview   `yaml:"preview"`
	Criteria []string  `yaml:"review_criteria"`
}

type service struct {
	Type    engi.ServiceType `yaml:"type"`
	Name    string           `yaml:"name"`
	Version string           `yaml:"version"`
	Exposed bool             `yaml:"exposed"`
}

type preview struct {
	Type engi.PreviewType `yaml:"type"`
	Root string           `yaml:"root"`
	Port int              `yaml:"port"`
}

func (p *preview) UnmarshalYAML(text []byte) error {
	type whole preview
	if yaml.Unmarshal(text, &p.Type) == nil {
		return nil
	}
	return yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode((*whole)(p))
}

//go:embed templates.yaml files
var own embed.FS

// Own returns the templates of engi, ordered by name.
func Own() []engi.WorkflowTemplate {
	text, err := own.ReadFile("templates.yaml")
	if err != nil {
		panic(err) // unreachable: it is embedded
	}
	files, err := fs.Sub(own, "files")
	if err != nil {
		panic(err) // unreachable: it is embedded
	}
	all, err := Parse(text, files)
	if err != nil {
		panic(err) // unreachable: tests parse it
	}
	return all
}

// Load returns engi's own templates and those of a YAML file, which replace own ones of the same name, ordered by
// name. An empty name means no file. Load reports Invalid.
func Load(file string) ([]engi.WorkflowTemplate, error) {
	all := Own()
	if file == "" {
		return all, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "workspaces.workflow_templates: %v", err)
	}
	theirs, err := Parse(text, os.DirFS(filepath.Dir(file)))
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "workspaces.workflow_templates: %w", err)
	}
	for _, t := range theirs {
		all = slices.DeleteFunc(all, func(own engi.WorkflowTemplate) bool { return own.Name == t.Name })
	}
	all = append(all, theirs...)
	slices.SortFunc(all, func(a, b engi.WorkflowTemplate) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Parse returns the templates that a YAML text defines, ordered by name. The content of a file is
// that of TEMPLATE/PATH in contents, and empty if there is none; contents may be nil. Parse reports Invalid.
func Parse(text []byte, contents fs.FS) ([]engi.WorkflowTemplate, error) {
	if len(text) > maxText {
		return nil, engi.Errorf(engi.Invalid, "the definition of workflow templates has %d bytes, %d at most", len(text), maxText)
	}
	var doc struct {
		Templates map[string]definition `yaml:"workflow_templates"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&doc); err != nil && err != io.EOF {
		return nil, engi.Errorf(engi.Invalid, "workflow templates: %s", strings.TrimSpace(yaml.FormatError(err, false, false))).WithRemedy("docs/workflows.md has the form")
	}
	if len(doc.Templates) > maxTemplates {
		return nil, engi.Errorf(engi.Invalid, "there are %d workflow templates, %d at most", len(doc.Templates), maxTemplates)
	}
	var all []engi.WorkflowTemplate
	for _, name := range slices.Sorted(maps.Keys(doc.Templates)) {
		t, err := doc.Templates[name].template(name, contents)
		if err != nil {
			return nil, engi.Errorf(engi.KindOf(err), "workflow template %.70q: %w", name, err)
		}
		all = append(all, t)
	}
	return all, nil
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (d definition) template(name string, contents fs.FS) (t engi.WorkflowTemplate, err error) {
	invalid := func(remedy, format string, args ...any) (engi.WorkflowTemplate, error) {
		return t, engi.Errorf(engi.Invalid, format, args...).WithRemedy("%s", remedy)
	}
	t = engi.WorkflowTemplate{Name: name, Criteria: d.Criteria, Preview: engi.WorkspacePreview{Type: d.Preview.Type, Root: d.Preview.Root, Port: d.Preview.Port}}
	switch {
	case !namePattern.MatchString(name):
		return invalid("use 1 to 63 lower-case letters, digits and dashes", "the name is invalid")
	case len(d.Files) > maxFiles || len(d.Services) > maxServices || len(d.Criteria) > engi.MaxCriteria:
		return invalid("make it smaller", "it has more than %d files, %d services or %d criteria", maxFiles, maxServices, engi.MaxCriteria)
	case !slices.Contains([]engi.PreviewType{engi.PreviewNone, engi.PreviewStatic, engi.PreviewProxy, engi.PreviewWebSocket}, t.Preview.Type):
		return invalid("use static, proxy or websocket, or leave it out", "there is no preview %.40q", t.Preview.Type)
	case t.Preview.Port < 0 || t.Preview.Port > 65535:
		return invalid("use 1 to 65535", "%d is not a port", t.Preview.Port)
	}
	if t.Preview.Port == 0 && (t.Preview.Type == engi.PreviewProxy || t.Preview.Type == engi.PreviewWebSocket) {
		t.Preview.Port = proxyPort
	}
	for i, c := range d.Criteria {
		if c == "" || len(c) > engi.MaxCriterion || strings.ContainsFunc(c, func(r rune) bool { return r < ' ' || r == 0x7f }) || slices.Contains(d.Criteria[:i], c) {
			return invalid(fmt.Sprintf("write one line of at most %d bytes, once", engi.MaxCriterion), "the criterion %.70q is empty, too long or there twice", c)
		}
	}
	for _, s := range d.Services {
		if !slices.Contains([]engi.ServiceType{engi.ServicePostgres, engi.ServiceMySQL, engi.ServiceRedis, engi.ServiceMongoDB, engi.ServiceNginx}, s.Type) {
			return invalid("use postgres, mysql, redis, mongodb or nginx", "there is no service of type %.40q", s.Type)
		}
		t.Services = append(t.Services, engi.ServiceSpec{Type: s.Type, Name: s.Name, Version: s.Version, Exposed: s.Exposed})
	}
	for i, p := range d.Files {
		if err := workspace.CheckPath(p); err != nil {
			return t, err
		}
		if slices.Contains(d.Files[:i], p) {
			return invalid("name it once", "the file %.100q is there twice", p)
		}
		content, err := read(contents, name+"/"+p)
		if err != nil {
			return t, err
		}
		t.Files = append(t.Files, engi.WorkspaceFile{Path: p, Content: content})
	}
	return t, nil
}

// read returns the content of a file; empty if there is none.
func read(contents fs.FS, name string) ([]byte, error) {
	if contents == nil {
		return []byte{}, nil
	}
	f, err := contents.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return []byte{}, nil
	}
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "read %s: %v", name, err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, engi.Errorf(engi.Invalid, "read %s: %v", name, err)
	case len(content) > maxFile:
		return nil, engi.TooLarge("file %s has more than %d bytes", name, maxFile)
	}
	return content, nil
}
