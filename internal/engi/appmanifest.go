package engi

// An AppManifest lists the parts of a revision of an app, to find the place for a
// change. Its content comes from code of models and can be false.
type AppManifest struct {
	App        AppID
	Revision   int64
	Entry      string // entry file; empty if none is known
	Files      []AppSource
	Components []AppComponent // ordered by file and position
	Routes     []AppRoute     // ordered by path
	Styles     []string       // style sheets
	Packages   map[string]string
	Problems   []AppSyntaxError // syntax errors, at most 100
	Truncated  bool             // imports, exports, components or routes of some files are missing
}

// An AppSource is a file of an app with its place in the import graph.
// other.
type AppSource struct {
	AppFile
	Type    string // component, script, style, config, data, document, asset, test, page, python
	Lines   int
	Imports []AppImport
	Exports []string // names of exports, including "default" and *
	Uses    []string // files that this file imports
	UsedBy  []string // files that import this file
}

// An AppImport is a use of another file or package.
type AppImport struct {
	Path    string // import path, as written
	Package string // package of npm or PyPI that provides the import; empty if there is none
	Line    int
	Type    string // static, dynamic, require, css, url, jsx or python; type if the import disappears when it is compiled
}

// An AppComponent is a React component.
type AppComponent struct {
	Name string
	File string
	Line int
	Uses []string // names of components that it renders
}

// An AppRoute is a path that an app serves.
type AppRoute struct {
	Path      string
	Method    string // HTTP method; empty for a page
	Component string // component that the route shows; empty if it cannot be determined
	File      string
	Line      int // line, from 1; 0 if the file itself is the route
}

// An AppSyntaxError is a syntax error in a file.
type AppSyntaxError struct {
	File         string
	Line, Column int // from 1; 0 for unknown
	Text         string
}
