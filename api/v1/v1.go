// Package v1 is what crosses the wire of engi's HTTP surface, version 1, as
// Go structs: the contract with everybody outside. It imports nothing of the
// house, so that a client needs nothing else, and holds no behaviour beyond
// reading and writing its own values; package rest translates to the nouns of
// the house.
//
// Names are in snake_case. Times are RFC 3339 in UTC. Durations are strings
// ([Duration]), sizes numbers of bytes or strings with a unit ([Bytes]).
// Fields that are left out of a request get the server's defaults; fields may
// be added to answers at any time, so readers must ignore what they do not
// know. Requests with unknown fields are refused.
package v1

import "time"

// A Problem says why a request was not answered, as an
// application/problem+json document (RFC 9457).
type Problem struct {
	Type          string   `json:"type" doc:"urn:engi:problem: and the kind" example:"urn:engi:problem:exhausted"`
	Title         string   `json:"title" doc:"the HTTP status in words" example:"Too Many Requests"`
	Status        int      `json:"status" doc:"the HTTP status" example:"429"`
	Detail        string   `json:"detail" doc:"what happened, to which object" example:"the queue of pool base/python is full"`
	Kind          string   `json:"kind" enum:"internal,invalid,not_found,conflict,denied,anonymous,exhausted,unavailable,unsupported,expired" doc:"what the caller can do about it; the set is closed"`
	Remedy        string   `json:"remedy" doc:"what to do next" example:"wait and try again, or raise the limit"`
	RequestID     string   `json:"request_id" doc:"names the request in the server's log" example:"req_u2dmwmlezjgprkqrgppgcz2mgu"`
	RetryAfter    Duration `json:"retry_after,omitempty" doc:"when another attempt makes sense" example:"1.5s"`
	QueuePosition int      `json:"queue_position,omitempty" doc:"place in the queue at the moment of refusal" example:"12"`
	Faults        []Fault  `json:"faults,omitempty" doc:"every fault of an invalid request, when there are several"`
}

// Kinds of problems. The set is closed.
const (
	Internal    = "internal"    // the server's fault; report it
	Invalid     = "invalid"     // the request can never succeed; fix it
	NotFound    = "not_found"   // no such thing, or not yours to know about
	Conflict    = "conflict"    // exists already, or is in the wrong state
	Denied      = "denied"      // known caller, forbidden act
	Anonymous   = "anonymous"   // unknown caller; authenticate
	Exhausted   = "exhausted"   // a quota or a capacity; later may work
	Unavailable = "unavailable" // a part is down; retrying is safe
	Unsupported = "unsupported" // cannot be done there, ever; choose another way
	Expired     = "expired"     // the deadline passed or the caller gave up
)

// A Fault is one thing that is wrong with a request.
type Fault struct {
	Field  string `json:"field" doc:"where, such as files[2].path or query.limit" example:"files[2].path"`
	Detail string `json:"detail" doc:"what is wrong there" example:"\"../x\" leads out of the working directory"`
}

// A List is one page of objects, newest first.
type List[T any] struct {
	Items      []T    `json:"items" doc:"the objects"`
	NextCursor string `json:"next_cursor,omitempty" doc:"pass it as cursor to get the next page; absent on the last one"`
}

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
	Size      Size                   `json:"size" doc:"defaults for its sandboxes"`
	Languages map[string]Interpreter `json:"languages,omitempty"`
	Bytes     Bytes                  `json:"bytes,omitempty" doc:"on disk; absent if it is not the server's own"`
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
	Definition string `json:"definition,omitempty" doc:"in YAML" example:"base: debian:bookworm\npackages: [jq]\n"`
	Async      bool   `json:"async,omitempty" doc:"answer 202 at once, with an operation that can be watched"`
}

// A BuildEvent is one step of a build, as streams deliver it. What it holds
// depends on Type: progress, log, result (the last), error (the last) or
// heartbeat.
type BuildEvent struct {
	Type     string    `json:"type" enum:"progress,log,result,error,heartbeat"`
	Step     int       `json:"step,omitempty" doc:"1 is the first"`
	Steps    int       `json:"steps,omitempty" doc:"absent if unknown"`
	Name     string    `json:"name,omitempty" doc:"what the step does"`
	Done     int64     `json:"done,omitempty" doc:"bytes or items of the step done"`
	Total    int64     `json:"total,omitempty" doc:"absent if unknown"`
	Log      string    `json:"log,omitempty" doc:"a line of the step's output"`
	Template *Template `json:"template,omitempty" doc:"with type result"`
	Error    *Problem  `json:"error,omitempty" doc:"with type error"`
}

// Pruned says what POST /v1/templates/prune freed.
type Pruned struct {
	Freed Bytes `json:"freed" doc:"on disk"`
}

// A Pool is a warm pool: sandboxes that wait for code.
type Pool struct {
	Template string `json:"template" example:"base"`
	Digest   string `json:"digest,omitempty"`
	Language string `json:"language,omitempty" doc:"of the interpreter that waits inside; absent for bare sandboxes"`
	Target   int    `json:"target" doc:"warm members wanted"`
	Max      int    `json:"max" doc:"sandboxes at most, used ones included; 0 leaves it to the node's limit"`
	Ready    int    `json:"ready"`
	Booting  int    `json:"booting"`
	Used     int    `json:"used"`
	Waiting  int    `json:"waiting" doc:"claims in the queue"`
}

// A KeyRequest asks for a new API key.
type KeyRequest struct {
	Name      string   `json:"name,omitempty" maxLength:"100" doc:"for people" example:"ci"`
	Owner     string   `json:"owner,omitempty" maxLength:"64" doc:"whom callers with this key act for, and whose objects they see; absent means default" example:"team-a"`
	Admin     bool     `json:"admin,omitempty" doc:"may see and do everything"`
	Scopes    []string `json:"scopes,omitempty" enum:"executions,sandboxes,templates,volumes,secrets,keys,read" doc:"what it is for; absent means everything but administration; read looks at everything and changes nothing" example:"[\"executions\"]"`
	ExpiresIn Duration `json:"expires_in,omitempty" doc:"absent means never" example:"720h"`
}

// A Key lets a caller act as an owner.
type Key struct {
	ID        string     `json:"id" doc:"names the key and opens nothing" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Name      string     `json:"name,omitempty"`
	Owner     string     `json:"owner,omitempty"`
	Admin     bool       `json:"admin"`
	Scopes    []string   `json:"scopes,omitempty" doc:"what it is for; absent means everything but administration"`
	Secret    string     `json:"secret,omitempty" doc:"only in the answer that made the key; it is kept nowhere"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"absent means never"`
	RevokedAt *time.Time `json:"revoked_at,omitempty" doc:"absent while it is in force"`
}

// A Node is the server that answers.
type Node struct {
	Version     string    `json:"version"`
	API         string    `json:"api" doc:"version of this interface" example:"v1"`
	Tier        string    `json:"tier" doc:"of the sandboxes it makes" example:"gvisor"`
	NotEnforced []string  `json:"not_enforced" doc:"limits that this machine cannot enforce; 'engi doctor' says why"`
	Languages   []string  `json:"languages" doc:"that POST /v1/executions accepts"`
	StartedAt   time.Time `json:"started_at"`
}

// Readiness is what /readyz answers.
type Readiness struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty" doc:"what is not ready yet; with ready, a part that others do not wait for"`
}
