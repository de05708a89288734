package template_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workflow/template"
)

// TestOwn checks that every template of engi has criteria, and files that are not empty.
func TestOwn(t *testing.T) {
	all := template.Own()
	var names []string
	for _, x := range all {
		names = append(names, x.Name)
		if len(x.Criteria) != 5 || len(x.Files) < 3 {
			t.Errorf("%s has %d criteria and %d files", x.Name, len(x.Criteria), len(x.Files))
		}
		for _, f := range x.Files {
			if len(f.Content) == 0 {
				t.Errorf("%s: %s is empty", x.Name, f.Path)
			}
		}
	}
	if diff := cmp.Diff([]string{"database-schema", "fullstack-app", "static-website"}, names); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff([]engi.ServiceSpec{{Type: engi.ServicePostgres}, {Type: engi.ServiceRedis}}, all[1].Services); diff != "" {
		t.Error(diff)
	}
	for i, want := range []engi.WorkspacePreview{{}, {Type: engi.PreviewProxy, Port: 8000}, {Type: engi.PreviewStatic}} {
		if all[i].Preview != want {
			t.Errorf("%s: %+v, want %+v", all[i].Name, all[i].Preview, want)
		}
	}
}

func TestParse(t *testing.T) {
	all, err := template.Parse([]byte("workflow_templates:\n  b: {}\n  a:\n    files: [x/y.txt, z]\n    preview: {type: websocket, port: 9}\n    services: [{type: mysql, version: '10.11', name: db, exposed: true}]\n"),
		fstest.MapFS{"a/x/y.txt": {Data: []byte("text")}})
	want := []engi.WorkflowTemplate{
		{Name: "a", Files: []engi.WorkspaceFile{{Path: "x/y.txt", Content: []byte("text")}, {Path: "z", Content: []byte{}}}, Preview: engi.WorkspacePreview{Type: engi.PreviewWebSocket, Port: 9},
			Services: []engi.ServiceSpec{{Type: engi.ServiceMySQL, Version: "10.11", Name: "db", Exposed: true}}},
		{Name: "b"},
	}
	if diff := cmp.Diff(want, all); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if all, err := template.Parse(nil, nil); err != nil || len(all) > 0 {
		t.Errorf("%v %v", all, err)
	}
}

// TestLoad reads a file that replaces a template and adds one.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file := write("templates.yaml", "workflow_templates:\n  api: {files: [main.py]}\n  static-website: {}\n")
	write("api/main.py", "print(1)\n")
	all, err := template.Load(file)
	if err != nil || len(all) != 4 || all[0].Name != "api" || string(all[0].Files[0].Content) != "print(1)\n" || all[3].Name != "static-website" || len(all[3].Files) > 0 {
		t.Errorf("%+v %v", all, err)
	}
	for _, bad := range []string{filepath.Join(dir, "nothing.yaml"), write("bad.yaml", "a: [")} {
		if _, err := template.Load(bad); !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "workspaces.workflow_templates") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestBadTemplates(t *testing.T) {
	one := func(text string) string { return "workflow_templates:\n  a:\n    " + text + "\n" }
	many := func(n int, format string) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(format, i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	for name, text := range map[string]string{
		"no YAML": "workflow_templates: [", "unknown field": one("fils: []"), "other document": "templates: {}", "name": "workflow_templates: {'A b': {}}", "large": "#" + strings.Repeat("x", 300<<10),
		"path outside": one("files: [../x]"), "absolute": one("files: [/etc/passwd]"), "git": one("files: [.git/config]"), "twice": one("files: [a, a]"), "files": one("files: " + many(201, "f%d")),
		"service": one("services: [{type: oracle}]"), "services": one("services: " + many(11, "{type: redis, name: r%d}")), "preview": one("preview: ftp"), "port": one("preview: {type: proxy, port: 70000}"),
		"unknown part of a preview": one("preview: {kind: proxy}"), "criteria": one("review_criteria: " + many(51, "c%d")), "empty criterion": one("review_criteria: ['']"), "same criterion": one("review_criteria: [a, a]"),
		"long criterion": one("review_criteria: [" + strings.Repeat("x", 301) + "]"), "lines": one(`review_criteria: ["a\nb"]`), "templates": "workflow_templates: {" + strings.Trim(many(101, "t%d: {}"), "[]") + "}",
	} {
		if all, err := template.Parse([]byte(text), nil); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %+v, %v", name, all, err)
		}
	}
	large := fstest.MapFS{"a/x": {Data: make([]byte, 1<<20+1)}}
	if _, err := template.Parse([]byte(one("files: [x]")), large); !engi.Is(err, engi.Invalid) {
		t.Errorf("a large file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("workflow_templates:\n  a:\n    files: [x]\n    preview: static\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := template.Parse(text, nil); err != nil && !engi.Is(err, engi.Invalid) {
			t.Error(err)
		}
	})
}
