package v1

// An AppManifest says what a revision of an app consists of.
type AppManifest struct {
	AppID      string            `json:"app_id" example:"app_u2dmwmlezjgprkqrgppgcz2mgu"`
	Revision   int64             `json:"revision" example:"3"`
	Entry      string            `json:"entry,omitempty" doc:"file that begins; absent if none is known" example:"src/main.tsx"`
	Files      []AppSource       `json:"files" doc:"by path; uses and used_by make the tree"`
	Components []AppComponent    `json:"components" doc:"of React, by file"`
	Routes     []AppRoute        `json:"routes" doc:"by path"`
	Styles     []string          `json:"styles" doc:"style sheets" example:"[\"src/index.css\"]"`
	Packages   map[string]string `json:"packages" doc:"that package.json or requirements.txt asks for, with their versions"`
	Problems   []AppSyntaxError  `json:"problems" doc:"syntax errors, 100 at most"`
	Truncated  bool              `json:"truncated" doc:"imports and the like of some files are left out, because there are more than 20,000"`
}

// An AppSource is a file of an app and its place in the tree of those that import each
// other.
type AppSource struct {
	Path    string      `json:"path" example:"src/App.tsx"`
	Type    string      `json:"type" enum:"component,script,style,config,data,document,asset,test,page,python"`
	Size    Bytes       `json:"size"`
	Lines   int         `json:"lines"`
	SHA256  string      `json:"sha256"`
	Since   int64       `json:"since" doc:"revision that has made it what it is" example:"2"`
	Imports []AppImport `json:"imports,omitempty"`
	Exports []string    `json:"exports,omitempty" doc:"default and * among them" example:"[\"default\"]"`
	Uses    []string    `json:"uses,omitempty" doc:"files of the app that it imports"`
	UsedBy  []string    `json:"used_by,omitempty" doc:"files of the app that import it"`
}

// An AppImport is a use of another file or package.
type AppImport struct {
	Path    string `json:"path" doc:"as written" example:"lucide-react"`
	Package string `json:"package,omitempty" doc:"of npm or PyPI that provides it" example:"lucide-react"`
	Line    int    `json:"line" example:"1"`
	Type    string `json:"type" doc:"type if it is gone once compiled, jsx if compiling elements adds it" enum:"static,dynamic,require,css,url,jsx,type,python"`
}

// An AppComponent is a component of React.
type AppComponent struct {
	Name string   `json:"name" example:"Cart"`
	File string   `json:"file" example:"src/Cart.tsx"`
	Line int      `json:"line" example:"3"`
	Uses []string `json:"uses,omitempty" doc:"names of components in it"`
}

// An AppRoute is a path at which an app shows something.
type AppRoute struct {
	Path      string `json:"path" example:"/cart"`
	Method    string `json:"method,omitempty" doc:"of HTTP; absent for a page" example:"GET"`
	Component string `json:"component,omitempty" doc:"that is shown" example:"Cart"`
	File      string `json:"file" example:"src/App.tsx"`
	Line      int    `json:"line,omitempty" doc:"absent if the file itself is the route"`
}

// An AppSyntaxError is what cannot be parsed in a file.
type AppSyntaxError struct {
	File   string `json:"file" example:"src/App.tsx"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Text   string `json:"text" example:"Expected \")\" but found \"{\""`
}
