package v1

import "time"

// A Template is a root file system that sandboxes start from.
type Template struct {
	Name      string                 `json:"name" example:"base"`
	Built     bool                   `json:"built" doc:"False for a definition that has not been built"`
	Digest    string                 `json:"digest,omitempty" doc:"Digest of the definition and of everything that the build read"`
	User      string                 `json:"user,omitempty" doc:"User that programs run as; absent means root"`
	Home      string                 `json:"home,omitempty"`
	WorkDir   string                 `json:"work_dir,omitempty" doc:"Working directory of programs"`
	Shell     string                 `json:"shell,omitempty"`
	Env       map[string]string      `json:"env,omitempty"`
	Ports     []int                  `json:"ports,omitempty" doc:"Ports of the template's services"`
	Private   bool                   `json:"private_ports,omitempty" doc:"Previews of the template's sandboxes need a key or a link"`
	Size      Size                   `json:"size" doc:"Default limits of the template's sandboxes"`
	Languages map[string]Interpreter `json:"languages,omitempty"`
	Bytes     Bytes                  `json:"bytes,omitempty" doc:"Bytes on disk; absent if the template is not on this server"`
	BuiltAt   *time.Time             `json:"built_at,omitempty"`
}

// An Interpreter runs one language in a template.
type Interpreter struct {
	Path string `json:"path" doc:"Absolute path of the program" example:"/usr/bin/python3"`
	Warm bool   `json:"warm" doc:"A warm pool can start the interpreter before the code is known"`
}

// A TemplateRequest builds a template.
type TemplateRequest struct {
	Name       string `json:"name" minLength:"1" maxLength:"64" doc:"Name of the template; a built-in template needs no definition" example:"base"`
	Definition string `json:"definition,omitempty" doc:"Definition in YAML, or the text of a devcontainer.json" example:"base: debian:bookworm\npackages: [jq]\n"`
	Async      bool   `json:"async,omitempty" doc:"Answer 202 at once, with an operation to watch"`
}

// A BuildUpdate is one event of a build in a stream. The set fields depend
// on Type: progress, log, warning, result (the last one), error (the last one) or heartbeat.
type BuildUpdate struct {
	Type     string    `json:"type" enum:"progress,log,warning,result,error,heartbeat"`
	Step     int       `json:"step,omitempty" doc:"Number of the step, from 1"`
	Steps    int       `json:"steps,omitempty" doc:"Total; absent if it is unknown"`
	Name     string    `json:"name,omitempty" doc:"Name of the step"`
	Done     int64     `json:"done,omitempty" doc:"Bytes or items of the step that are done"`
	Total    int64     `json:"total,omitempty" doc:"Total; absent if it is unknown"`
	Log      string    `json:"log,omitempty" doc:"Line of the step's output, or a part of the definition that has no effect"`
	Template *Template `json:"template,omitempty" doc:"Result; only with type result"`
	Error    *Problem  `json:"error,omitempty" doc:"Error; only with type error"`
}

// A Pruned is the result of POST /v1/templates/prune.
type Pruned struct {
	Freed Bytes `json:"freed" doc:"Bytes on disk"`
}
