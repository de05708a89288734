package config

import (
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/engi-dev/engi/internal/agent/remote"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
)

// MCP configures the servers whose tools agents use.
type MCP struct {
	Servers []MCPServer `toml:"servers" env:"-" help:"tool servers: name, url, private and headers, or command and env, template, network, where, tools, timeout"`
}

// An MCPServer is a tool server: one on the network, or a program.
type MCPServer struct {
	Name     string            `toml:"name"` // prefix of the names of its tools
	URL      string            `toml:"url"`
	Private  bool              `toml:"private"`     // URL may be on this host or its network
	KeyEnv   string            `toml:"api_key_env"` // variable of the server whose value is sent as the bearer token
	Headers  map[string]string `toml:"headers"`     // env:NAME stands for the value of a variable of the server
	Command  []string          `toml:"command"`
	Env      map[string]string `toml:"env"` // environment of the command; secret:NAME is a placeholder for a secret
	Where    string            `toml:"where"`
	Template string            `toml:"template"`
	Network  []string          `toml:"network"` // network rules of the command
	Tools    []string          `toml:"tools"`   // offered tools; empty means all
	Timeout  Duration          `toml:"timeout"` // maximum time of a call, and of a start
}

const (
	whereOwn = "own" // its own sandbox
	whereRun = "run" // the sandbox of the run

	fromEnv    = "env:"
	fromSecret = "secret:"
)

// Client returns the client for servers with URLs. It reaches only public
// addresses, and those of servers that may be private. Each call has its own limits
// of time and size, and a stream may last.
func (m MCP) Client() *http.Client {
	o := fetch.Options{Timeout: 24 * time.Hour, MaxBody: 1 << 50, Remedy: "set private = true for the server in mcp.servers if it may be on this host or its network"}
	for _, s := range m.Servers {
		if u, err := url.Parse(s.URL); err == nil && s.Private {
			o.Trusted = append(o.Trusted, u.Host)
		}
	}
	return fetch.New(o)
}

// ToolServers returns the servers for package remote. lookup reads the environment.
func (m MCP) ToolServers(lookup func(string) (string, bool)) ([]remote.Server, error) {
	all := make([]remote.Server, len(m.Servers))
	for i, s := range m.Servers {
		var err error
		if all[i], err = s.server(lookup); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s MCPServer) server(lookup func(string) (string, bool)) (remote.Server, error) {
	out := remote.Server{
		Name: s.Name, URL: s.URL, Command: s.Command, InRunSandbox: s.Where == whereRun, Template: s.Template, Tools: s.Tools, Timeout: time.Duration(s.Timeout),
	}
	headers := maps.Clone(s.Headers)
	if s.KeyEnv != "" {
		if headers == nil {
			headers = map[string]string{}
		}
		headers["Authorization"] = fromEnv + s.KeyEnv
	}
	for name, value := range headers {
		if variable, ok := strings.CutPrefix(value, fromEnv); ok {
			if value, ok = lookup(variable); !ok || strings.TrimSpace(value) == "" {
				return out, engi.Errorf(engi.Invalid, "mcp.servers: %s: the environment has no %s", s.Name, variable).
					WithRemedy("set it, or remove the server from the configuration")
			}
			value = strings.TrimSpace(value)
			if name == "Authorization" && s.KeyEnv != "" {
				value = "Bearer " + value
			}
		}
		if out.Header == nil {
			out.Header = http.Header{}
		}
		out.Header.Set(name, value)
	}
	if len(s.Network) > 0 {
		out.Network = engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: s.Network}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := s.Env[name]
		if secret, ok := strings.CutPrefix(value, fromSecret); ok {
			out.Network.Grants = append(out.Network.Grants, engi.Grant{Secret: secret, Hosts: hostsOf(s.Network), Env: name})
			continue
		}
		if out.Env == nil {
			out.Env = map[string]string{}
		}
		out.Env[name] = value
	}
	return out, nil
}

// hostsOf returns the host names of rules.
func hostsOf(rules []string) (hosts []string) {
	for _, rule := range rules {
		if _, rest, ok := strings.Cut(rule, "://"); ok {
			rule = rest
		}
		host, _, _ := strings.Cut(rule, ":")
		_, address := netip.ParseAddr(rule)
		if address != nil && strings.ContainsFunc(host, unicode.IsLetter) && !strings.ContainsAny(host, "[/") {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

func (m MCP) validate() error {
	// The start of a node checks whether the variables exist.
	servers, err := m.ToolServers(func(string) (string, bool) { return "x", true })
	if err != nil {
		return err
	}
	if _, err := remote.New(remote.Options{Servers: servers}); err != nil {
		return engi.Errorf(engi.KindOf(err), "mcp.servers: %w", err)
	}
	for i, s := range m.Servers {
		bad := func(format string, args ...any) *engi.Error {
			return engi.Errorf(engi.Invalid, "mcp.servers: %s: "+format, append([]any{s.Name}, args...)...)
		}
		grants := len(servers[i].Network.Grants)
		switch {
		case s.Private && s.URL == "":
			return bad("private is for URLs").WithRemedy("name private hosts of a command in network")
		case s.Where != "" && s.Where != whereOwn && s.Where != whereRun:
			return bad("where is %q", s.Where).WithRemedy("use %s or %s", whereOwn, whereRun)
		case s.Where == whereRun && (s.Template != "" || len(s.Network) > 0 || grants > 0):
			return bad("template, network and secrets are for commands with a sandbox of their own").WithRemedy("set where = %q", whereOwn)
		case s.Where != "" && s.URL != "":
			return bad("where is for commands")
		case s.URL == "" && s.KeyEnv != "":
			return bad("api_key_env is for servers with a url")
		case grants > 0 && len(hostsOf(s.Network)) == 0:
			return bad("a secret goes to hosts that network names, and it names none")
		}
	}
	return nil
}
