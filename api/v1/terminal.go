package v1

import "time"

// TerminalProtocol is the subprotocol of WebSockets of terminals; TerminalSecret is
// the beginning of a second one, with the secret of a link.
const (
	TerminalProtocol = "engi.terminal.v1"
	TerminalSecret   = "engi.secret."
)

// Types of messages of terminals, beside exit and error.
const (
	TerminalAttached = "attached"
	TerminalOutput   = "output"
	TerminalMissing  = "missing"
	TerminalScreenAt = "screen"
	TerminalReplayed = "replayed"
	TerminalAck      = "ack"
	TerminalResized  = "size"
	TerminalPresence = "presence"
	TerminalResize   = "resize" // from clients
)

// A TerminalRequest starts a terminal.
type TerminalRequest struct {
	Args       []string          `json:"args,omitempty" doc:"program and arguments; absent means the template's shell" example:"[\"bash\",\"-l\"]"`
	Dir        string            `json:"dir,omitempty" doc:"absolute; absent means the working directory, or the home of another user" example:"/workspace"`
	Env        map[string]string `json:"env,omitempty" doc:"added to the sandbox's"`
	User       string            `json:"user,omitempty" doc:"absent means the template's"`
	Cols       int               `json:"cols,omitempty" minimum:"1" maximum:"512" doc:"absent means 80"`
	Rows       int               `json:"rows,omitempty" minimum:"1" maximum:"256" doc:"absent means 24"`
	Scrollback Bytes             `json:"scrollback,omitempty" doc:"of output kept; absent means 1 MiB, at most 16 MiB"`
}

// A Terminal is a program with a screen in a session or a sandbox.
type Terminal struct {
	ID        string           `json:"id" example:"trm_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string           `json:"owner,omitempty"`
	SessionID string           `json:"session_id,omitempty"`
	SandboxID string           `json:"sandbox_id" doc:"with which it ends"`
	Args      []string         `json:"args" doc:"only the program while the sandbox sleeps"`
	Dir       string           `json:"dir,omitempty"`
	Cols      int              `json:"cols" doc:"at the start"`
	Rows      int              `json:"rows" doc:"at the start"`
	Running   bool             `json:"running" doc:"not known to have ended"`
	Viewers   []TerminalViewer `json:"viewers" doc:"who looks at it now"`
	CreatedAt time.Time        `json:"created_at"`
}

// A TerminalViewer is a client that looks at a terminal.
type TerminalViewer struct {
	ID       string    `json:"id"`
	Name     string    `json:"name" example:"ann"`
	ReadOnly bool      `json:"read_only"`
	LinkID   string    `json:"link_id,omitempty" doc:"by which it came; absent for the owner"`
	Since    time.Time `json:"since"`
}

// A TerminalScreen is what a terminal shows.
type TerminalScreen struct {
	Cols      int    `json:"cols"`
	Rows      int    `json:"rows"`
	Text      string `json:"text" doc:"the lines, each with a newline, without spaces at their ends" example:"$ echo hi\nhi\n"`
	Cursor    Cursor `json:"cursor"`
	Alternate bool   `json:"alternate" doc:"a program such as an editor has taken the whole screen"`
	Title     string `json:"title,omitempty"`
	Offset    int64  `json:"offset" doc:"of the output up to which this is so"`
}

// A Cursor is where the next character goes.
type Cursor struct {
	Col     int  `json:"col" doc:"from 0"`
	Row     int  `json:"row" doc:"from 0"`
	Visible bool `json:"visible"`
}

// A TerminalLinkRequest asks for a link to a terminal.
type TerminalLinkRequest struct {
	TTL   Duration `json:"ttl,omitempty" doc:"how long it is valid, at most 30 days; absent means an hour" example:"1h"`
	Write bool     `json:"write,omitempty" doc:"who has it may type"`
	Name  string   `json:"name,omitempty" maxLength:"64" doc:"of its viewers" example:"guest"`
}

// A TerminalLink opens one terminal to whoever has its secret.
type TerminalLink struct {
	ID         string    `json:"id" example:"tlk_u2dmwmlezjgprkqrgppgcz2mgu"`
	TerminalID string    `json:"terminal_id"`
	Name       string    `json:"name,omitempty"`
	Write      bool      `json:"write"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at"`
	Secret     string    `json:"secret,omitempty" doc:"once, when it is made"`
}

// A TerminalMessage is a text message on the WebSocket of a terminal, see
// docs/terminals.md.
type TerminalMessage struct {
	Type string `json:"type"`

	Offset *int64 `json:"offset,omitempty"` // output, missing, screen, replayed
	End    *int64 `json:"end,omitempty"`    // attached, missing
	Start  *int64 `json:"start,omitempty"`  // attached
	Input  *int64 `json:"input,omitempty"`  // attached, ack

	Viewer   string           `json:"viewer,omitempty"`
	ReadOnly *bool            `json:"read_only,omitempty"`
	Cols     int              `json:"cols,omitempty"`
	Rows     int              `json:"rows,omitempty"`
	Viewers  []TerminalViewer `json:"viewers,omitempty"`
	Exit     *Exit            `json:"exit,omitempty"`
	Error    *Problem         `json:"error,omitempty"`
}
