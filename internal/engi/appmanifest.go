package engi

// An AppManifest says what a revision of an app consists of, for those who look for
// where to change it. What is in it comes from code of models, and may be made up.
type AppManifest struct {
	App        AppID
	Revision   int64
	Entry      string // file that begins; empty if none is known
	Files      []AppSource
	Components []AppComponent // by file and place
	Routes     []AppRoute     // by path
	Styles     []string       // style sheets
	Packages   map[string]string
	Problems   []AppSyntaxError // syntax errors, at most 100
	Truncated  bool             // imports, exports, components or routes of some files are left out
}

// An AppSource is a file of an app and its place in the tree of those that import each
// other.
type AppSource struct {
	AppFile
	Type    string // component, script, style, config, data, document, asset, test, page, python
	Lines   int
	Imports []AppImport
	Exports []string // "default" and * among them
	Uses    []string // files that it imports
	UsedBy  []string // files that import it
}

// An AppImport is a use of another file or package.
type AppImport struct {
	Path    string // as written
	Package string // of npm or PyPI that provides it; else empty
	Line    int
	Type    string // static, dynamic, require, css, url, jsx, python; type if it is gone once compiled
}

// An AppComponent is a component of React.
type AppComponent struct {
	Name string
	File string
	Line int
	Uses []string // names of components in it
}

// An AppRoute is a path at which an app shows something.
type AppRoute struct {
	Path      string
	Method    string // of HTTP; empty for a page
	Component string // that is shown; empty if it is not plain
	File      string
	Line      int // 0 if the file itself is the route
}

// An AppSyntaxError is what cannot be parsed in a file.
type AppSyntaxError struct {
	File         string
	Line, Column int // from 1; 0 for unknown
	Text         string
}
