package rest

import (
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
)

func (a *apps) manifest(c *call, in *ofRevision) (v1.AppManifest, error) {
	x, err := a.Manifest(c, c.viewer(), in.ID, in.Revision)
	out := v1.AppManifest{
		AppID: string(x.App), Revision: x.Revision, Entry: text(x.Entry), Files: []v1.AppSource{}, Components: []v1.AppComponent{}, Routes: []v1.AppRoute{}, Styles: texts(x.Styles),
		Packages: map[string]string{}, Problems: []v1.AppSyntaxError{}, Truncated: x.Truncated,
	}
	for _, f := range x.Files {
		file := v1.AppSource{
			Path: text(f.Path), Type: f.Type, Size: v1.Bytes(max(0, f.Size)), Lines: f.Lines, SHA256: f.Digest, Since: f.Since, Exports: texts(f.Exports), Uses: texts(f.Uses), UsedBy: texts(f.UsedBy),
		}
		for _, im := range f.Imports {
			file.Imports = append(file.Imports, v1.AppImport{Path: text(im.Path), Package: text(im.Package), Line: im.Line, Type: im.Type})
		}
		out.Files = append(out.Files, file)
	}
	for _, x := range x.Components {
		out.Components = append(out.Components, v1.AppComponent{Name: text(x.Name), File: text(x.File), Line: x.Line, Uses: texts(x.Uses)})
	}
	for _, x := range x.Routes {
		out.Routes = append(out.Routes, v1.AppRoute{Path: text(x.Path), Method: text(x.Method), Component: text(x.Component), File: text(x.File), Line: x.Line})
	}
	for name, version := range x.Packages {
		out.Packages[text(name)] = text(version)
	}
	for _, x := range x.Problems {
		out.Problems = append(out.Problems, v1.AppSyntaxError{File: text(x.File), Line: x.Line, Column: x.Column, Text: text(x.Text)})
	}
	return out, err
}

// text returns the output of a program as valid UTF-8, which JSON requires.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func texts(all []string) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = text(s)
	}
	return out
}
