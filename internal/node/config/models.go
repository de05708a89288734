package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page"
)

// Models configures the language models of agents and their budgets.
type Models struct {
	Off       bool                `toml:"off" env:"OFF" help:"serve no agents"`
	Default   string              `toml:"default" env:"DEFAULT" help:"model of agents that name none, as provider:model; empty means demo:script, which follows a script and understands nothing"`
	Embedding string              `toml:"embedding" env:"EMBEDDING" help:"embedding model, as provider:model"`
	Rerank    string              `toml:"rerank" env:"RERANK" help:"model that ranks pieces of documentation by how well they answer a question, as provider:model; empty means none"`
	Timeout   Duration            `toml:"timeout" env:"TIMEOUT" help:"longest wait for one answer of a model"`
	Fetch     []string            `toml:"fetch" env:"FETCH" help:"rules for hosts that agents may fetch pages from, like *.example.com:443; none switches the tool off"`
	MaxRuns   int                 `toml:"max_runs" env:"MAX_RUNS" help:"runs of agents at once"`
	Budgets   Budgets             `toml:"budgets" envPrefix:"BUDGETS_"`
	Fallbacks map[string][]string `toml:"fallbacks" env:"-" help:"models to use when one fails temporarily: \"provider:model\" = [\"provider:model\"]"`
	Prices    map[string]Price    `toml:"prices" env:"-" help:"what a million tokens cost: [models.prices.\"provider:model\"] input, output, cache_read, cache_write"`
}

// Budgets limits the spending of each owner on models, by the price table.
type Budgets struct {
	Day         float64           `toml:"day" env:"DAY" help:"what one owner may spend on models in a day (UTC), in the currency of the prices; 0 is no limit"`
	Month       float64           `toml:"month" env:"MONTH" help:"the same in a calendar month; 0 is no limit"`
	DayTokens   int64             `toml:"day_tokens" env:"DAY_TOKENS" help:"tokens that models may read and write for one owner in a day; 0 is no limit"`
	MonthTokens int64             `toml:"month_tokens" env:"MONTH_TOKENS" help:"the same in a calendar month; 0 is no limit"`
	Owner       map[string]Budget `toml:"owner" env:"-" help:"overrides for single owners: tables [models.budgets.owner.NAME] with the same keys; -1 is no limit"`
}

// A Budget overrides Budgets for one owner. Zero fields override nothing; negative
// fields mean no limit.
type Budget struct {
	Day         float64 `toml:"day"`
	Month       float64 `toml:"month"`
	DayTokens   int64   `toml:"day_tokens"`
	MonthTokens int64   `toml:"month_tokens"`
}

// Of returns the limits of owner. Zero fields mean no limit.
func (b Budgets) Of(owner engi.Owner) Budget {
	o := b.Owner[string(owner)]
	return Budget{
		Day:         max(0, cmp.Or(o.Day, b.Day)),
		Month:       max(0, cmp.Or(o.Month, b.Month)),
		DayTokens:   max(0, cmp.Or(o.DayTokens, b.DayTokens)),
		MonthTokens: max(0, cmp.Or(o.MonthTokens, b.MonthTokens)),
	}
}

// A Price is the price of a million tokens, in any currency.
type Price struct {
	Input      float64 `toml:"input"`
	Output     float64 `toml:"output"`
	CacheRead  float64 `toml:"cache_read"`
	CacheWrite float64 `toml:"cache_write"`
}

// A Provider is a service that runs language models.
type Provider struct {
	Dialect string            `toml:"dialect"`     // openai, responses, compatible, anthropic or gemini; empty means the dialect of the provider's name
	URL     string            `toml:"url"`         // empty means the URL of the provider's name
	KeyEnv  string            `toml:"api_key_env"` // variable of the server with the key
	Headers map[string]string `toml:"headers"`
}

// An Agent is a model with instructions and tools.
type Agent struct {
	Name        string   `toml:"name"`
	Description string   `toml:"description"`
	Model       string   `toml:"model"` // provider:model; empty means models.default
	System      string   `toml:"system"`
	Tools       []string `toml:"tools"`
	Steps       int      `toml:"steps"`
	Budget      float64  `toml:"budget"` // maximum cost of a run, in the currency of the prices; 0 means no limit
	Output      string   `toml:"output"` // JSON schema of the answer
	MaxTokens   int      `toml:"max_tokens"`
	Temperature *float64 `toml:"temperature"`
	Effort      string   `toml:"effort"`  // reasoning effort: none, low, medium or high
	Confirm     []string `toml:"confirm"` // tools whose calls wait for a decision; * means all
}

// Demo is the name of the provider whose model follows a script.
const Demo = "demo"

// LLMOptions returns the models of a configuration as options of package llm.
// lookup reads the environment.
func (c Config) LLMOptions(lookup func(string) (string, bool)) (llm.Options, error) {
	o := llm.Options{Providers: map[string]llm.Provider{}, Default: c.Models.Default, Embedding: c.Models.Embedding, Rerank: c.Models.Rerank, Fallbacks: c.Models.Fallbacks, Prices: map[string]llm.Price{}}
	for _, name := range slices.Sorted(maps.Keys(c.Providers)) {
		p := c.Providers[name]
		out := llm.Provider{Dialect: llm.Dialect(p.Dialect), URL: p.URL, Headers: p.Headers}
		if p.KeyEnv != "" {
			key, ok := lookup(p.KeyEnv)
			if !ok || strings.TrimSpace(key) == "" {
				return o, engi.Errorf(engi.Invalid, "providers.%s: the environment has no %s", name, p.KeyEnv).
					WithRemedy("set it, or remove the provider from the configuration")
			}
			out.Key = strings.TrimSpace(key)
		}
		o.Providers[name] = out
	}
	for ref, p := range c.Models.Prices {
		o.Prices[ref] = llm.Price(p)
	}
	return o, nil
}

// defaultAgents are the built-in agents; configured agents of the same names replace them.
var defaultAgents = []engi.AgentSpec{{
	Name: "coder", Description: "Writes programs and runs them in sandboxes.", Tools: []string{"*"},
	System: "You help with programming. When you write code, run it with your tools before you say that it works, and show what it printed.",
}, {
	Name: "explore", Description: "Finds things out about the files of a sandbox, and changes nothing.", Steps: 30,
	Tools:  []string{"read_file", "list_files", "glob", "grep"},
	System: "You explore the files of a sandbox and answer questions about them. You can read and search, and change nothing. Say where you found what you say, as path and line.",
}, {
	Name: "code", Description: "Works on the files of a sandbox and runs commands in it.", Steps: 50,
	Tools:  []string{"read_file", "list_files", "glob", "grep", "write_file", "edit_file", "run_command"},
	System: "You work on the files of a sandbox. Read before you change something, and run what you have changed before you say that it works.",
}}

// AgentSpecs returns the configured agents, the first of which is the default,
// and then the built-in agents. The agent for pages comes last, so that it is not the
// default.
func (c Config) AgentSpecs() []engi.AgentSpec {
	var all []engi.AgentSpec
	for _, a := range c.Agents {
		s := engi.AgentSpec{
			Name: a.Name, Description: a.Description, Model: a.Model, System: a.System, Tools: a.Tools, Steps: a.Steps, Budget: int64(a.Budget * 1e6),
			MaxTokens: a.MaxTokens, Temperature: a.Temperature, Effort: engi.Effort(a.Effort), Confirm: a.Confirm,
		}
		if a.Output != "" {
			s.Output = []byte(a.Output)
		}
		all = append(all, s)
	}
	for _, s := range defaultAgents {
		if !slices.ContainsFunc(all, func(a engi.AgentSpec) bool { return a.Name == s.Name }) {
			all = append(all, s)
		}
	}
	return page.WithAgent(all)
}

func (m Models) validate() error {
	if b := m.Budgets; min(b.Day, b.Month) < 0 || min(b.DayTokens, b.MonthTokens) < 0 {
		return engi.Errorf(engi.Invalid, "[models.budgets] has a negative number").WithRemedy("leave it out, or say 0, for no limit")
	}
	if m.Timeout < 0 || m.MaxRuns < 0 {
		return engi.Errorf(engi.Invalid, "models has a negative value")
	}
	return nil
}
