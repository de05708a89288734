package v1

import "time"

// A Template is a root file system that sandboxes start from.
type Template struct {
	Name      string                 `json:"name" example:"base"`
	Built     bool                   `json:"built" doc:"false for a definition that was not built yet"`
	Digest    string                 `json:"digest,omitempty" doc:"of the definition and everything it read"`
	User      string                 `json:"user,omitempty" doc:"who programs run as; absent means root"`
	Home      string                 `json:"home,omitempty"`
	WorkDir   string                 `json:"work_dir,omitempty" doc:"where programs start"`
	Shell     string                 `json:"shell,omitempty"`
	Env       map[string]string      `json:"env,omitempty"`
	Ports     []int                  `json:"ports,omitempty" doc:"that its services listen on"`
	Private   bool                   `json:"private_ports,omitempty" doc:"previews of its sandboxes need a key or a link"`
	Size      Size                   `json:"size" doc:"defaults for its sandboxes"`
	Languages map[string]Interpreter `json:"languages,omitempty"`
	Bytes     Bytes                  `json:"bytes,omitempty" doc:"on disk; absent if it is not on this server"`
	BuiltAt   *time.Time             `json:"built_at,omitempty"`
}

// An Interpreter runs one language in a template.
type Interpreter struct {
	Path string `json:"path" doc:"absolute path of the program" example:"/usr/bin/python3"`
	Warm bool   `json:"warm" doc:"a warm pool may start it before the code is known"`
}

// A TemplateRequest asks for a template to be built.
type TemplateRequest struct {
	Name       string `json:"name" minLength:"1" maxLength:"64" doc:"of the template; a built-in one needs no definition" example:"base"`
	Definition string `json:"definition,omitempty" doc:"in YAML, or the text of a devcontainer.json" example:"base: debian:bookworm\npackages: [jq]\n"`
	Async      bool   `json:"async,omitempty" doc:"respond with 202 at once, with an operation to watch"`
}

// A BuildUpdate is one step of a build in a stream. Which fields are set depends
// on Type: progress, log, warning, result (the last), error (the last) or heartbeat.
type BuildUpdate struct {
	Type     string    `json:"type" enum:"progress,log,warning,result,error,heartbeat"`
	Step     int       `json:"step,omitempty" doc:"1 is the first"`
	Steps    int       `json:"steps,omitempty" doc:"absent if unknown"`
	Name     string    `json:"name,omitempty" doc:"what the step does"`
	Done     int64     `json:"done,omitempty" doc:"bytes or items of the step done"`
	Total    int64     `json:"total,omitempty" doc:"absent if unknown"`
	Log      string    `json:"log,omitempty" doc:"a line of the step's output, or what the definition says that has no effect"`
	Template *Template `json:"template,omitempty" doc:"with type result"`
	Error    *Problem  `json:"error,omitempty" doc:"with type error"`
}

// Pruned says what POST /v1/templates/prune freed.
type Pruned struct {
	Freed Bytes `json:"freed" doc:"on disk"`
}
