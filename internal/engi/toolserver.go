package engi

import "time"

// A ToolServer is a configured MCP server with its state at the last use. It
// is a value.
type ToolServer struct {
	Name    string
	Kind    ToolServerKind
	State   ToolServerState
	Tools   []string  // names of the tools, as models see them, from the last list
	Skipped []string  // tools that cannot be used, each with the reason
	Error   string    // error of state failed
	Checked time.Time // zero if the server was never used
}

// A ToolServerKind says how an MCP server is reached.
type ToolServerKind string

const (
	ToolServerURL     ToolServerKind = "url"     // over the network
	ToolServerCommand ToolServerKind = "command" // a command that runs in a sandbox
)

// A ToolServerState is the state of an MCP server, as far as it is known.
type ToolServerState string

const (
	ToolServerUnused ToolServerState = "unused" // not used yet
	ToolServerReady  ToolServerState = "ready"
	ToolServerFailed ToolServerState = "failed" // Error says why
)

// ToolServers lists the configured MCP servers. It is safe for concurrent use.
type ToolServers interface {
	// Servers returns the servers in the order of the configuration. It does not
	// contact them.
	Servers() []ToolServer
}
