package v1

// An AppManifest lists the parts of a revision of an app.
type AppManifest struct {
	AppID      string            `json:"app_id" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Revision   int64             `json:"revision" example:"3"`
	Entry      string            `json:"entry,omitempty" doc:"Entry file; absent if none is known" example:"src/main.tsx"`
	Files      []AppSource       `json:"files" doc:"Source files, ordered by path; uses and used_by form the dependency graph"`
	Components []AppComponent    `json:"components" doc:"React components, ordered by file"`
	Routes     []AppRoute        `json:"routes" doc:"Objects, ordered by path"`
	Styles     []string          `json:"styles" doc:"Style sheets" example:"[\"src/index.css\"]"`
	Packages   map[string]string `json:"packages" doc:"Packages of package.json or requirements.txt, with their versions"`
	Problems   []AppSyntaxError  `json:"problems" doc:"Syntax errors, at most 100"`
	Truncated  bool              `json:"truncated" doc:"Imports, exports or components of some files are missing, because the app has more than 20,000"`
}

// An AppSource is a file of an app, with its place in the graph of
// imports.
type AppSource struct {
	Path    string      `json:"path" example:"src/App.tsx"`
	Type    string      `json:"type" enum:"component,script,style,config,data,document,asset,test,page,python"`
	Size    Bytes       `json:"size"`
	Lines   int         `json:"lines"`
	SHA256  string      `json:"sha256"`
	Since   int64       `json:"since" doc:"Revision that last changed the file" example:"2"`
	Imports []AppImport `json:"imports,omitempty"`
	Exports []string    `json:"exports,omitempty" doc:"Names of exports, including default and *" example:"[\"default\"]"`
	Uses    []string    `json:"uses,omitempty" doc:"Files of the app that this file imports"`
	UsedBy  []string    `json:"used_by,omitempty" doc:"Files of the app that import this file"`
}

// An AppImport is a use of another file or package.
type AppImport struct {
	Path    string `json:"path" doc:"Import path, as written" example:"lucide-react"`
	Package string `json:"package,omitempty" doc:"Package of npm or PyPI that provides the import" example:"lucide-react"`
	Line    int    `json:"line" example:"1"`
	Type    string `json:"type" doc:"type: the import disappears when it is compiled; jsx: compiled elements add the import" enum:"static,dynamic,require,css,url,jsx,type,python"`
}

// An AppComponent is a React component.
type AppComponent struct {
	Name string   `json:"name" example:"Cart"`
	File string   `json:"file" example:"src/Cart.tsx"`
	Line int      `json:"line" example:"3"`
	Uses []string `json:"uses,omitempty" doc:"Names of components that this one renders"`
}

// An AppRoute is a path at which an app shows a page.
type AppRoute struct {
	Path      string `json:"path" example:"/cart"`
	Method    string `json:"method,omitempty" doc:"HTTP method; absent for a page" example:"GET"`
	Component string `json:"component,omitempty" doc:"Component that the route shows" example:"Cart"`
	File      string `json:"file" example:"src/App.tsx"`
	Line      int    `json:"line,omitempty" doc:"Line, from 1; absent if the file itself is the route"`
}

// An AppSyntaxError is a syntax error in a file.
type AppSyntaxError struct {
	File   string `json:"file" example:"src/App.tsx"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Text   string `json:"text" example:"Expected \")\" but found \"{\""`
}
