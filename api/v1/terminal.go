package v1

import "time"

// TerminalProtocol is the subprotocol of WebSockets of terminals; TerminalSecret is
// the prefix of a second subprotocol, with the secret of a link.
const (
	TerminalProtocol = "engi.terminal.v1"
	TerminalSecret   = "engi.secret."
)

// Types of messages of terminals, besides exit and error.
const (
	TerminalAttached = "attached"
	TerminalOutput   = "output"
	TerminalMissing  = "missing"
	TerminalScreenAt = "screen"
	TerminalReplayed = "replayed"
	TerminalAck      = "ack"
	TerminalResized  = "size"
	TerminalPresence = "presence"
	TerminalResize   = "resize" // sent by clients
)

// A TerminalRequest starts a terminal.
type TerminalRequest struct {
	Args       []string          `json:"args,omitempty" doc:"Program and arguments; absent means the template's shell" example:"[\"bash\",\"-l\"]"`
	Dir        string            `json:"dir,omitempty" doc:"Absolute path of the working directory; absent means the template's, or the home directory of another user" example:"/workspace"`
	Env        map[string]string `json:"env,omitempty" doc:"Environment variables, added to the sandbox's"`
	User       string            `json:"user,omitempty" doc:"User in the sandbox; absent means the template's"`
	Cols       int               `json:"cols,omitempty" minimum:"1" maximum:"512" doc:"Columns; absent means 80"`
	Rows       int               `json:"rows,omitempty" minimum:"1" maximum:"256" doc:"Rows; absent means 24"`
	Scrollback Bytes             `json:"scrollback,omitempty" doc:"Size of the kept output; absent means 1 MiB, at most 16 MiB"`
}

// A Terminal is a program with a screen in a session or a sandbox.
type Terminal struct {
	ID        string           `json:"id" example:"trm_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string           `json:"owner,omitempty"`
	SessionID string           `json:"session_id,omitempty"`
	SandboxID string           `json:"sandbox_id" doc:"ID of the sandbox, with which the terminal ends"`
	Args      []string         `json:"args" doc:"Program and arguments; only the program while the sandbox sleeps"`
	Dir       string           `json:"dir,omitempty"`
	Cols      int              `json:"cols" doc:"Columns at the start"`
	Rows      int              `json:"rows" doc:"Rows at the start"`
	Running   bool             `json:"running" doc:"The program has not ended, as far as is known"`
	Viewers   []TerminalViewer `json:"viewers" doc:"Current viewers"`
	CreatedAt time.Time        `json:"created_at"`
}

// A TerminalViewer is a client attached to a terminal.
type TerminalViewer struct {
	ID       string    `json:"id"`
	Name     string    `json:"name" example:"ann"`
	ReadOnly bool      `json:"read_only"`
	LinkID   string    `json:"link_id,omitempty" doc:"ID of the link that the viewer used; absent for the owner"`
	Since    time.Time `json:"since"`
}

// A TerminalScreen is the screen of a terminal.
type TerminalScreen struct {
	Cols      int    `json:"cols"`
	Rows      int    `json:"rows"`
	Text      string `json:"text" doc:"Lines of the screen, each with a newline, without trailing spaces" example:"$ echo hi\nhi\n"`
	Cursor    Cursor `json:"cursor"`
	Alternate bool   `json:"alternate" doc:"A program such as an editor uses the whole screen"`
	Title     string `json:"title,omitempty"`
	Offset    int64  `json:"offset" doc:"Offset in the output up to which the screen is complete"`
}

// A Cursor is the position of the next character.
type Cursor struct {
	Col     int  `json:"col" doc:"Column, from 0"`
	Row     int  `json:"row" doc:"Row, from 0"`
	Visible bool `json:"visible"`
}

// A TerminalLinkRequest creates a link to a terminal.
type TerminalLinkRequest struct {
	TTL   Duration `json:"ttl,omitempty" doc:"Lifetime of the link, at most 30 days; absent means one hour" example:"1h"`
	Write bool     `json:"write,omitempty" doc:"Allow typing with the link"`
	Name  string   `json:"name,omitempty" maxLength:"64" doc:"Name of viewers who use the link" example:"guest"`
}

// A TerminalLink gives the holder of its secret access to one terminal.
type TerminalLink struct {
	ID         string    `json:"id" example:"tlk_u2dmwmlezjgprkqrgppgcz2mgu"`
	TerminalID string    `json:"terminal_id"`
	Name       string    `json:"name,omitempty"`
	Write      bool      `json:"write"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at"`
	Secret     string    `json:"secret,omitempty" doc:"Secret of the link; shown once, when the link is created"`
}

// A TerminalMessage is a text message on the WebSocket of a terminal; see
// docs/terminals.md.
type TerminalMessage struct {
	Type string `json:"type"`

	Offset *int64 `json:"offset,omitempty"` // in messages output, missing, screen and replayed
	End    *int64 `json:"end,omitempty"`    // in messages attached and missing
	Start  *int64 `json:"start,omitempty"`  // in message attached
	Input  *int64 `json:"input,omitempty"`  // in messages attached and ack

	Viewer   string           `json:"viewer,omitempty"`
	ReadOnly *bool            `json:"read_only,omitempty"`
	Cols     int              `json:"cols,omitempty"`
	Rows     int              `json:"rows,omitempty"`
	Viewers  []TerminalViewer `json:"viewers,omitempty"`
	Exit     *Exit            `json:"exit,omitempty"`
	Error    *Problem         `json:"error,omitempty"`
}
