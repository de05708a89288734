package config

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function/builtin"
	"github.com/engi-dev/engi/internal/spelling"
)

// Events configures durable functions.
type Events struct {
	Off       bool              `toml:"off" env:"OFF" help:"accept no events and run no functions"`
	Engine    string            `toml:"engine" env:"ENGINE" help:"what executes functions: dbos, in this process and a file of the data directory, or inngest, a server of yours"`
	MaxRuns   int               `toml:"max_runs" env:"MAX_RUNS" help:"runs of functions at once"`
	MaxQueue  int               `toml:"max_queue" env:"MAX_QUEUE" help:"unfinished runs of functions, beyond which events are refused"`
	Keep      Duration          `toml:"keep" env:"KEEP" help:"how long ended runs are kept"`
	KeepCount int               `toml:"keep_count" env:"KEEP_COUNT" help:"how many ended runs are kept"`
	LogKeep   Duration          `toml:"log_keep" env:"LOG_KEEP" help:"how long events stay in the log"`
	LogCount  int64             `toml:"log_count" env:"LOG_COUNT" help:"how many events of each owner stay in the log"`
	LogBytes  Bytes             `toml:"log_bytes" env:"LOG_BYTES" help:"how many bytes of each owner's events stay in the log"`
	Inngest   Inngest           `toml:"inngest" envPrefix:"INNGEST_"`
	Runtimes  map[string]string `toml:"runtimes" env:"-" help:"templates of further runtimes for engi/sandbox/create, besides node24, node22 and python3.13: [events.runtimes] NAME = \"TEMPLATE\""`
}

// Engines of durable functions.
const (
	EngineDBOS    = "dbos"
	EngineInngest = "inngest"
)

func defaultEvents() Events {
	return Events{Engine: EngineDBOS, MaxRuns: 256, MaxQueue: 10000, Keep: Duration(30 * 24 * time.Hour), KeepCount: 100000,
		LogKeep: Duration(30 * 24 * time.Hour), LogCount: 200_000, LogBytes: 128 << 20}
}

// A Function is a durable function that runs an agent or a program.
type Function struct {
	Name        string   `toml:"name"`
	Description string   `toml:"description"`
	Event       string   `toml:"event"` // type of the events that start the function
	Cron        string   `toml:"cron"`  // times that start the function: five fields, in UTC
	Owner       string   `toml:"owner"` // owner of runs that cron starts; empty means the node
	Retries     int      `toml:"retries"`
	Backoff     Duration `toml:"backoff"`     // time before the first retry, doubled for each later one; 0 means 1 s
	Concurrency int      `toml:"concurrency"` // maximum number of runs at once; 0 means no limit
	PerOwner    int      `toml:"per_owner"`   // maximum number of runs of one owner at once; 0 means no limit
	Timeout     Duration `toml:"timeout"`     // maximum time of a run; 0 means no limit

	Agent   string  `toml:"agent"`   // name of an agent
	Input   string  `toml:"input"`   // input of the agent: a text/template with .Event.Data
	Sandbox string  `toml:"sandbox"` // sandbox for the agent's tools: a text/template like {{.Event.Data.sandbox_id}}
	Session string  `toml:"session"` // session for the agent's tools: a text/template
	Run     Program `toml:"run"`     // program to run instead of an agent: run = {language, code or file, template}
}

// A Program runs in its own sandbox, which is then destroyed.
type Program struct {
	Language string `toml:"language"`
	Code     string `toml:"code"`
	File     string `toml:"file"`     // absolute path, instead of Code
	Template string `toml:"template"` // template of the sandbox; empty means the node's default
}

// RuntimeTemplates returns the built-in and configured templates of runtimes.
func (e Events) RuntimeTemplates() map[string]string {
	all := builtin.Runtimes()
	maps.Copy(all, e.Runtimes)
	return all
}

// DeclaredFunctions returns the functions of c. read returns the contents of a file.
func (c Config) DeclaredFunctions(read func(path string) ([]byte, error)) ([]builtin.Declared, error) {
	var all []builtin.Declared
	for _, f := range c.Functions {
		d := builtin.Declared{
			Function: engi.Function{
				Name: f.Name, Description: f.Description, Event: f.Event, Cron: f.Cron,
				Retries: f.Retries, Concurrency: f.Concurrency, PerOwner: f.PerOwner, Timeout: time.Duration(f.Timeout),
			},
			Owner: engi.Owner(f.Owner), Agent: f.Agent, Input: f.Input, Sandbox: f.Sandbox, Session: f.Session, Template: f.Run.Template,
		}
		d.Backoff.First = time.Duration(f.Backoff)
		if f.Run != (Program{}) {
			code := []byte(f.Run.Code)
			if f.Run.File != "" {
				var err error
				if code, err = read(f.Run.File); err != nil {
					return nil, engi.Errorf(engi.Invalid, "functions: %s: %v", f.Name, err)
				}
			}
			language := engi.Language(f.Run.Language)
			d.Program = engi.Program{Language: language, Files: []engi.SourceFile{{Path: language.MainFile(), Data: code}}}
		}
		all = append(all, d)
	}
	return all, nil
}

func (e Events) validate() error {
	if !slices.Contains([]string{EngineDBOS, EngineInngest}, e.Engine) {
		return engi.Errorf(engi.Invalid, "events.engine is %.40q", e.Engine).WithRemedy("use dbos or inngest")
	}
	if e.MaxRuns < 0 || e.MaxQueue < 0 || e.Keep < 0 || e.KeepCount < 0 || e.LogKeep < 0 || e.LogCount < 0 || e.LogBytes < 0 {
		return engi.Errorf(engi.Invalid, "events has a negative value")
	}
	for name, template := range e.Runtimes {
		if name == "" || template == "" {
			return engi.Errorf(engi.Invalid, "events.runtimes: %q = %q is incomplete", name, template)
		}
	}
	return nil
}

// functionFaults returns the faults of all [[functions]].
func (c Config) functionFaults() (all []error) {
	var agents []string
	for _, a := range c.AgentSpecs() {
		agents = append(agents, a.Name)
	}
	seen := map[string]bool{}
	for _, f := range c.Functions {
		err := f.validate()
		if err == nil && f.Agent != "" && !slices.Contains(agents, f.Agent) {
			missing := engi.Errorf(engi.Invalid, "functions: %.80q: there is no agent %.80q", f.Name, f.Agent)
			if err = missing.WithRemedy("name one of %s", strings.Join(agents, ", ")); spelling.Nearest(f.Agent, agents) != "" {
				err = missing.WithRemedy("did you mean %s?", spelling.Nearest(f.Agent, agents))
			}
		}
		if err == nil && seen[f.Name] {
			err = engi.Errorf(engi.Invalid, "functions: there are two called %s", f.Name)
		}
		seen[f.Name] = true
		all = append(all, err)
	}
	return all
}

func (f Function) validate() error {
	bad := func(remedy, format string, args ...any) error {
		e := engi.Errorf(engi.Invalid, "functions: %.80q: "+format, append([]any{f.Name}, args...)...)
		if remedy != "" {
			e = e.WithRemedy("%s", remedy)
		}
		return e
	}
	r := f.Run
	program := r != (Program{})
	switch {
	case f.Name == "":
		return bad("", "it has no name")
	case f.Event == "" && f.Cron == "":
		return bad("set its event or its cron", "it has neither events nor a schedule")
	case program == (f.Agent != ""):
		return bad("give it agent and input, or run = {language, code}", "it has to have an agent or a program, one of the two")
	case program && engi.Language(r.Language).MainFile() == "":
		return bad("use python, javascript, typescript, go or bash", "run.language is %.40q", r.Language)
	case program && (r.Code == "") == (r.File == ""):
		return bad("", "run has code or a file, one of the two")
	case r.File != "" && !filepath.IsAbs(r.File):
		return bad("write the path from the root", "run.file %.200q is not absolute", r.File)
	case f.Timeout < 0 || f.Backoff < 0 || f.Retries < 0 || f.Concurrency < 0 || f.PerOwner < 0:
		return bad("", "it has a negative value")
	}
	return nil
}
